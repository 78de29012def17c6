"""The seeded world: chance picks every step, and what goes wrong at it."""

from collections.abc import Awaitable, Callable

from colony.keys import GROUP
from tests.simulator.actors import Process
from tests.simulator.chances import Chances
from tests.simulator.colony import Colony
from tests.simulator.conductor import Fate, Job, Parked, Tampering
from tests.simulator.stage import Stage

LONGEST_CUT = 4000
MOST_STEPS = 1_500
GLANCE = 40
# How often a slow job is the next, beside others.
SLOW = 0.04

Act = Callable[[], Awaitable[None]]
Choice = tuple[float, Act]


class Seeded(Colony):
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
            if self.steps % GLANCE == 0:
                await self.glance()
            if self.steps % GLANCE == 0 and self.is_said() and await self._all_ended():
                return

    async def glance(self) -> None:
        """Look whether all is well meanwhile, where that does not take long."""

    def _choices(self) -> list[Choice]:
        often = self.chances.weight
        choices: list[Choice] = []
        if self.conductor.parked:
            choices.append((8, self._release))
        choices += self.clients_begin()
        if self.conductor.late:
            choices.append((1, self.send_late))
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
        choices += self.clients_repeat()
        choices.append((often(0.1), self.pass_ten_minutes))
        if self.ledger.counted["expelled"]:
            choices.append((often(0.2), self.adopt))
        if self.chances.sessions:
            choices.append((often(0.2), self.look_after_sessions))
        choices += [(often(weight * left), act) for left, act, weight in self.rarities() if left]
        return choices

    # What clients do is another thing in each kind of world.

    def is_said(self) -> bool:
        """Whether clients have said all that they have to."""
        raise NotImplementedError

    def clients_begin(self) -> list[Choice]:
        """What clients may do first."""
        raise NotImplementedError

    def clients_repeat(self) -> list[Choice]:
        """What clients may do again."""
        raise NotImplementedError

    def rarities(self) -> list[tuple[int, Act, float]]:
        """What happens a few times at most: how often it still may, what, and its weight."""
        return [
            (self._burials, self._bury, 0.1),
            (self._expulsions, self._expel, 0.1),
            (self._restarts, self._restart, 0.03),
        ]

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

    # Operators

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
