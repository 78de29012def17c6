"""The world: one colony with its actors, and what can be done with them."""

from collections import deque
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any
from uuid import UUID

from colony.blobs import UNREFERENCED_MS
from colony.envelope import derived_id
from colony.keys import Keys
from colony.streams import Delivery
from tests.simulator.actors import Client, Means, Message, Process, Warden
from tests.simulator.chances import Chances
from tests.simulator.conductor import JOB, Conductor, Fate, Job, Tampering
from tests.simulator.ledger import Ledger
from tests.simulator.stage import Stage
from tests.simulator.tree import ENTRIES, SESSION_ENTRIES

MOST_STEPS = 30_000
REMEMBERED = 4_000


class World:
    """A colony in which nothing moves by itself."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        *,
        chances: Chances,
        tampering: Tampering,
        targets: Sequence[str] = (),
    ) -> None:
        self.random = Random(seed)
        self.stage = stage
        self.keys: Keys = stage.keys
        self.chances = chances
        self.conductor = Conductor()
        self.ledger = Ledger(stage.link, self.keys)
        self.events: deque[tuple[str, str | None]] = deque(maxlen=REMEMBERED)
        self.steps = 0
        tree = stage.tree(tampering)
        self.means = Means(self.keys, tree.topology, self.conductor, self.random)
        links = stage.links(self.conductor, tampering, self.ledger.witness)
        hosted = stage.hosted(tampering)
        memories = {path: h for path, h in hosted.items() if path.endswith("/memory")}
        others = {path: h for path, h in hosted.items() if path not in memories}
        crews = {"router-0": None, "router-1": None, "worker-0": others, "worker-1": hosted,
                 "worker-2": memories, "worker-3": hosted}  # fmt: skip
        self.processes = [Process(name, next(links), self.means, c) for name, c in crews.items()]
        self.wardens = [Warden(f"keeper-{n}", next(links), self.means) for n in range(2)]
        self.clients = [Client(next(links), self.means) for _ in range(2)]
        self._late_link = next(links)
        targets = targets or self._targets()
        self.messages = [self._message(seed, n, target) for n, target in enumerate(targets)]
        self.unsent = [*self.messages]
        cells = map(self.keys.cell, sorted(tree.topology.cells))
        self.streams = [self.keys.router(), *cells, self.keys.quiet()]

    # Life

    async def send_all(self) -> list[Message]:
        """Have every message admitted."""
        while self.unsent:
            await self.admit(self.unsent.pop())
            await self.conductor.release(self.conductor.parked[0], Fate.ANSWERED)
        return self.messages

    async def go_on(
        self,
        *,
        claiming: bool = False,
        reading: bool = True,
        withheld: Job | None = None,
        script: str | None = None,
        processes: Sequence[Process] | None = None,
    ) -> int:
        """Let every process do what it can; returns how much that was.

        Nothing is done of the job that is `withheld`, and no `script` is run. Processes that
        are not among `processes` do nothing.
        """
        moved = 0
        while free := [
            parked
            for parked in self.conductor.parked
            if parked.job is not withheld and parked.what != script
        ]:
            await self.conductor.release(free[0], Fate.ANSWERED)
            moved += 1
        for process in self.processes if processes is None else processes:
            if process.ready:
                self.start(process, "commit", process.commit(process.ready))
                await self.conductor.stillness()
                moved += 1
            found = await process.read(process.sources(), 64) if reading else []
            for source in process.sources() if claiming else ():
                if await self.stage.link.command("XLEN", source):
                    found += await process.reclaim(source, 64)
            await self.decide_all(process, found)
            moved += len(found)
        return moved

    async def rest(self) -> None:
        """Let everything run to its end without faults, after some processes have died."""
        for process in self.processes:
            if self.random.random() < self.chances.fault * 4:
                await self.crash(process)
        self.conductor.late.clear()
        idle = 0
        while idle < 2 and not self.ledger.violations:
            if idle > 0 and self.ledger.counted["expelled"]:
                await self.adopt()
            if idle > 0 and self.chances.sessions:
                await self.look_after_sessions()
            moved = await self.go_on(claiming=idle > 0) + await self._keep_all(claiming=idle > 0)
            idle = 0 if moved else idle + 1
            self.steps += moved
            self.judge_jobs()
            if self.steps > MOST_STEPS:
                self.ledger.complain("it does not come to rest")

    async def _keep_all(self, *, claiming: bool) -> int:
        moved = 0
        for warden in self.wardens:
            found = await (warden.reclaim(64) if claiming else warden.read(64))
            await self.attend_all(warden, found)
            moved += len(found)
        return moved

    # What actors do

    def start(self, owner: object, what: str, doing: Coroutine[Any, Any, None]) -> Job:
        """Let an actor begin something."""
        return self.conductor.start(Job(what, owner, slow=self._is_slow()), doing)

    async def decide_all(self, process: Process, found: Sequence[Delivery]) -> None:
        """Let a process begin with deliveries, one after the other."""
        for delivery in found:
            trace_id = delivery.head.trace_id
            what = f"{process.name} takes {process.desk.owner(delivery.source)} {delivery.entry}"
            self.events.append((what, trace_id))
            job = Job(what, process, delivery, slow=self._is_slow())
            job.begun_after_end = trace_id in self.ledger.fenced
            self.conductor.start(job, process.decide(delivery))
            await self.conductor.stillness()

    async def attend_all(self, warden: Warden, found: Sequence[tuple[bytes, list[bytes]]]) -> None:
        """Let a keeper begin with reports, one after the other."""
        for entry, fields in found:
            trace_id = fields[1].decode()
            self.events.append((f"{warden.name} attends", trace_id))
            self.start(warden, "attend", warden.attend(entry, fields))
            await self.conductor.stillness()

    async def admit(self, message: Message) -> None:
        """Have a message sent by some client."""
        client = self.random.choice(self.clients)
        self.events.append((f"a client sends to {message.target}", message.trace_id))
        self.start(client, "send", client.send(message))
        await self.conductor.stillness()

    async def adopt(self) -> None:
        """Let some keeper take in what was delivered and is in nobody's hands."""
        adopted = await self.random.choice(self.wardens).keeper.repairs.adopt_orphans()
        self.ledger.counted["adopted"] += adopted

    async def look_after_sessions(self) -> None:
        """Let some keeper look whether a turn is nobody's."""
        warden = self.random.choice(self.wardens)
        self.start(warden, "look after sessions", warden.look())
        await self.conductor.stillness()

    def _is_slow(self) -> bool:
        return self.random.random() < self.chances.fault

    # What befalls them

    async def crash(self, process: Process) -> None:
        """A process dies, and another one takes its name."""
        self.ledger.counted["crashes"] += 1
        self.events.append((f"{process.name} dies", None))
        await self.conductor.abort(lambda job: job.owner is process)
        process.die()

    async def restart(self, cut: int) -> None:
        """The server is killed, loses the end of what it wrote, and comes back."""
        self.events.append((f"the server is killed and loses {cut} bytes", None))
        self.conductor.late.clear()
        await self.stage.restart(cut)
        self.ledger.forget()
        for process in self.processes:
            process.behind = True
        for trace_id in sorted(self.ledger.gone):
            if await self.stage.link.command("EXISTS", self.keys.trace(trace_id)):
                self.ledger.gone.discard(trace_id)
        await self.ledger.turns.recall(self.ledger.gone)

    async def pass_ten_minutes(self) -> None:
        """What expires within ten minutes does."""
        # Blobs that no commit refers to are gone by then; nothing else is as short-lived.
        link = self.stage.link
        for key in await link.command("KEYS", self.keys.blob("*").replace("{", "\\{")):
            if 0 < await link.command("PTTL", key) <= UNREFERENCED_MS:
                await link.command("DEL", key)

    # Sight

    def judge_jobs(self) -> None:
        """Note what went wrong in jobs: none may fail."""
        for job in self.conductor.failed:
            self.ledger.complain(f"{job.what} failed: {type(job.error).__name__}: {job.error}")
        self.conductor.failed.clear()
        for client in self.clients:
            for what, trace_id in client.problems:
                self.ledger.complain(what, trace_id)
            client.problems.clear()
        for warden in self.wardens:
            # Scripts pass turns on, but for those of traces whose record is gone.
            for session in () if self.ledger.gone else warden.held_up:
                self.ledger.complain(f"the turn of {session} was nobody's")
            self.ledger.counted["held up"] += len(warden.held_up)
            warden.held_up.clear()

    def saw_handle(self, path: str, trace_id: str) -> None:
        """Note that a cell handles an envelope."""
        self.ledger.counted["effects"] += 1
        self.events.append((f"{path} handles", trace_id))
        job = JOB.get()
        if job is not None and job.begun_after_end:
            self.ledger.complain(f"{path} handled what was taken after the end", trace_id)

    def _message(self, seed: int, number: int, target: str) -> Message:
        guard = f"{seed}:{number}" if self.random.random() < 0.6 else None
        own = str(UUID(int=self.random.getrandbits(128)))
        text = "go" + self.random.choice(("", "!" * 1000))
        return Message(
            number=number,
            target=target,
            text=f"{number} {text}",
            turn=f"turn-{seed}-{number}",
            guard=guard,
            trace_id=derived_id("guard", guard) if guard else own,
            session=self.random.choice(self.chances.sessions) if self.chances.sessions else "",
        )

    def _targets(self) -> Sequence[str]:
        if self.chances.sessions:
            return self.random.choices(SESSION_ENTRIES, k=self.random.randint(2, 5))
        return self.random.choices(ENTRIES, k=self.random.randint(1, 3))
