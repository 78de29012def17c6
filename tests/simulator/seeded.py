"""The seeded world: chance picks every step, and what goes wrong at it."""

from collections.abc import Awaitable, Callable

from colony.keys import GROUP
from tests.simulator.actors import Process
from tests.simulator.chances import Chances
from tests.simulator.conductor import Fate, Job, Parked, Tampering
from tests.simulator.stage import Stage
from tests.simulator.world import World

LONGEST_CUT = 4000
MOST_STEPS = 1_500
# How often a slow job is the next, beside others.
SLOW = 0.04

Act = Callable[[], Awaitable[None]]


class SeededWorld(World):
    """A colony that is moved one step at a time by a seed."""

    def __init__(self, stage: Stage, seed: int, *, chances: Chances, tampering: Tampering) -> None:
        super().__init__(stage, seed, chances=chances, tampering=tampering)
        self._ends = max(chances.ends, self.random.randint(0, 2))
        self._burials = max(chances.burials, self.random.choice((0, 0, 1, 3)))
        self._losses = max(chances.losses, self.random.choice((0, 0, 0, 1)))
        self._expulsions = max(chances.expulsions, self.random.choice((0, 0, 1, 2)))
        self._replays = self.random.choice((0, 5, 10)) if chances.replays else 0
        self._restarts = self.random.randint(1, chances.restarts) if chances.restarts else 0
        self._floor: tuple[str, int] = ("", 0)
        # What was being published when a process last read that there is nothing for it.
        self._read_all: dict[str, int] = {}

    async def live(self) -> None:
        """Take random steps until every message has come to its end, or the steps are used up."""
        self._floor = self.stage.log_size()
        while self.steps < MOST_STEPS and not self.ledger.violations:
            choices = self._choices()
            weights = [weight for weight, _ in choices]
            _, act = self.random.choices(choices, weights)[0]
            await act()
            self.steps += 1
            self.judge_jobs()
            if self.steps % 40 == 0 and not self.unsent and await self._all_ended():
                return

    def _choices(self) -> list[tuple[float, Act]]:
        often = self.chances.weight
        choices: list[tuple[float, Act]] = []
        if self.conductor.parked:
            choices.append((8, self._release))
        if self.unsent:
            # Those of a session are to be under way together.
            choices.append((4 if self.chances.sessions else 1, self._send))
        if self.conductor.late:
            choices.append((1, self._arrive_late))
        for process in self.processes:
            if process.room > 0:
                # Nothing came since it read that there is nothing: it would only read so again.
                if self._read_all.get(process.name) != self.ledger.news:
                    choices.append((0.8, self._of(self._read, process)))
                choices.append((often(0.25), self._of(self._reclaim, process)))
                choices.append(
                    (often(2 if process.behind else 0.05), self._of(self._take_up, process))
                )
            if process.ready:
                choices.append((2.5, self._of(self._commit, process)))
            if process.in_hand:
                choices.append((often(0.06), self._of(self._hand_back, process)))
                choices.append((often(0.06), self._of(self.crash, process)))
        choices.append((0.8, self._keep))
        choices.append((often(0.3), self._keep_again))
        choices.append((often(0.25), self._repeat))
        choices.append((often(0.1), self.pass_ten_minutes))
        if self.ledger.counted["expelled"]:
            choices.append((often(0.2), self.adopt))
        if self.chances.sessions:
            choices.append((often(0.2), self.look_after_sessions))
        for left, act, weight in (
            (self._ends, self._end, 0.06),
            (self._burials, self._bury, 0.1),
            (self._losses, self._lose_record, 0.04),
            (self._expulsions, self._expel, 0.1),
            (self._replays, self._replay, 0.1),
            (self._restarts, self._restart, 0.03),
        ):
            if left:
                choices.append((often(weight * left), act))
        return choices

    @staticmethod
    def _of(act: Callable[[Process], Awaitable[None]], process: Process) -> Act:
        return lambda: act(process)

    # Processes

    async def _release(self) -> None:
        parked = self._next()
        fate = Fate.ANSWERED
        if self.random.random() < self.chances.fault:
            fates = [Fate.UNSENT, Fate.UNANSWERED, Fate.UNANSWERED, Fate.LATE, Fate.SENDER_DIES]
            fate = self.random.choice(fates) if parked.is_script else Fate.SENDER_DIES
        self._note(parked, fate)
        await self.conductor.release(parked, fate)
        if fate is Fate.SENDER_DIES:
            await self._die(parked.job)

    def _next(self) -> Parked:
        parked = self.conductor.parked
        weights = [SLOW if one.job.slow else 1 for one in parked]
        return self.random.choices(parked, weights)[0]

    async def _die(self, job: Job) -> None:
        if isinstance(job.owner, Process):
            await self.crash(job.owner)
        else:
            self.ledger.counted["crashes"] += 1
            await self.conductor.abort(lambda other: other is job)

    def _note(self, parked: Parked, fate: Fate) -> None:
        owner = getattr(parked.job.owner, "name", "a client")
        if fate is not Fate.ANSWERED:
            self.ledger.counted[fate.name.lower().replace("_", " ")] += 1
        self.events.append((f"{owner}: {parked.what} of {parked.job.what}: {fate.name}", None))

    async def _read(self, process: Process) -> None:
        sources = process.sources()
        if self.random.random() < 0.3:
            sources = self.random.sample(sources, max(1, len(sources) // 4))
        found = await process.read(sources, self._few(process))
        if not found and len(sources) == len(process.sources()):
            self._read_all[process.name] = self.ledger.news
        await self.decide_all(process, found)

    def _few(self, process: Process) -> int:
        return self.random.randint(1, min(3, process.room))

    async def _reclaim(self, process: Process) -> None:
        found = await process.reclaim(self.random.choice(process.sources()), self._few(process))
        self.ledger.counted["claims"] += len(found)
        await self.decide_all(process, found)

    async def _take_up(self, process: Process) -> None:
        await self.decide_all(process, (await process.take_up())[:])

    async def _commit(self, process: Process) -> None:
        ready = process.ready
        chosen = self.random.sample(ready, self.random.randint(1, len(ready)))
        server = chosen[0].server
        chosen = [delivery for delivery in chosen if delivery.server == server]
        self.start(process, f"commit {len(chosen)}", process.commit(chosen))
        await self.conductor.stillness()

    async def _hand_back(self, process: Process) -> None:
        delivery = self.random.choice(process.in_hand)
        if delivery in process.committing:
            return
        await self.conductor.abort(lambda j: j.owner is process and j.subject == delivery)
        self.start(process, "hand back", process.hand_back(delivery))
        await self.conductor.stillness()

    # Keepers

    async def _keep(self) -> None:
        warden = self.random.choice(self.wardens)
        await self.attend_all(warden, await warden.read(self.random.randint(1, 3)))

    async def _keep_again(self) -> None:
        warden = self.random.choice(self.wardens)
        await self.attend_all(warden, await warden.reclaim(self.random.randint(1, 3)))

    async def _bury(self) -> None:
        waiting = [path for path in sorted(self.means.topology.cells) if await self._backlog(path)]
        if not waiting:
            return
        self._burials -= 1
        warden = self.random.choice(self.wardens)
        path = self.random.choice(waiting)
        self.start(warden, f"bury {path}", warden.bury(path))
        await self.conductor.stillness()

    async def _backlog(self, path: str) -> int:
        return int(await self.stage.link.command("XLEN", self.keys.cell(path)))

    # Clients and operators

    async def _send(self) -> None:
        await self.admit(self.unsent.pop())

    async def _repeat(self) -> None:
        message = self.random.choice(self.messages)
        if message in self.unsent or message.trace_id in self.ledger.gone:
            return
        if message.guard and message.told and not self.ledger.cut and self.random.random() < 0.3:
            client = self.random.choice(self.clients)
            self.start(client, "misuse", client.misuse(message))
            await self.conductor.stillness()
        else:
            await self.admit(message)

    async def _end(self) -> None:
        self._ends -= 1
        message = self.random.choice(self.messages)
        client = self.random.choice(self.clients)
        cause = self.random.choice(("cancelled", "failed"))
        self.start(client, f"end {cause}", client.end(message.trace_id, cause))
        await self.conductor.stillness()

    async def _replay(self) -> None:
        letters = await self.stage.link.command("XRANGE", self.keys.dead(), "-", "+")
        if letters:
            self._replays -= 1
            letter = self.random.choice(letters)[0].decode()
            client = self.random.choice(self.clients)
            self.events.append((f"a client replays {letter}", None))
            self.start(client, "replay", client.replay(letter))
            await self.conductor.stillness()

    async def _expel(self) -> None:
        """An operator has the server forget a consumer, whatever it holds."""
        for stream in self.random.sample(self.streams, len(self.streams)):
            held = await self.stage.link.command("XPENDING", stream, GROUP)
            if held[0]:
                break
        else:
            return
        self._expulsions -= 1
        self.ledger.counted["expelled"] += 1
        name = self.random.choice(sorted(consumer.decode() for consumer, _ in held[3]))
        self.events.append((f"{name} is expelled from {stream}", None))
        await self.stage.link.command("XGROUP", "DELCONSUMER", stream, GROUP, name)

    # Fate

    async def _arrive_late(self) -> None:
        late = self.conductor.late.pop(self.random.randrange(len(self.conductor.late)))
        self.events.append((f"{late.call.script.name} arrives late", None))
        if late.server == await self._late_link.open():
            await self._late_link.run_unasked(late.call)

    async def _lose_record(self) -> None:
        message = self.random.choice(self.messages)
        key = self.keys.trace(message.trace_id)
        if message.guard is None or not message.told:
            return
        if (await self.stage.link.command("HGET", key, "live")) in (None, b"0"):
            return
        self._losses -= 1
        self.events.append(("its record is gone", message.trace_id))
        self.ledger.gone.add(message.trace_id)
        await self.stage.link.command("DEL", key)

    async def _restart(self) -> None:
        self._restarts -= 1
        self.ledger.counted["restarts"] += 1
        name, before = self.stage.log_size()
        if self.conductor.parked and self.random.random() < 0.6:
            # It hears the answer, and the server forgets what it told.
            parked = self._next()
            self._note(parked, Fate.ANSWERED)
            await self.conductor.release(parked, Fate.ANSWERED)
            cut = self.stage.log_size()[1] - before
        else:
            cut = self.random.randint(0, self.random.choice((0, 40, 400, LONGEST_CUT)))
        name, size = self.stage.log_size()
        cut = min(cut, size - (self._floor[1] if name == self._floor[0] else 0))
        await self.restart(max(cut, 0))
        self._read_all.clear()

    async def _all_ended(self) -> bool:
        left = await self.stage.link.command("ZRANGE", self.keys.open_traces(), 0, -1)
        return self.ledger.gone.issuperset(trace_id.decode() for trace_id in left)
