"""The colony: routers, workers and keepers in which nothing moves by itself."""

from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from random import Random
from typing import Any

from colony.blobs import UNREFERENCED_MS
from colony.keys import Keys
from colony.streams import Delivery
from colony.workshop import Hosted
from tests.simulator.actors import Means, Process, Warden
from tests.simulator.chances import Chances
from tests.simulator.conductor import JOB, Conductor, Fate, Job, Tampering
from tests.simulator.judge import Judge
from tests.simulator.ledger import Ledger
from tests.simulator.stage import Stage

MOST_STEPS = 30_000
REMEMBERED = 4_000


class Colony:
    """The processes of a world, and what can be done with them."""

    def __init__(self, stage: Stage, seed: int, *, chances: Chances, tampering: Tampering) -> None:
        self.random = Random(seed)
        self.stage = stage
        self.keys: Keys = stage.keys
        self.chances = chances
        self.conductor = Conductor()
        self.ledger = self.make_ledger()
        self.events: deque[tuple[str, str | None]] = deque(maxlen=REMEMBERED)
        self.steps = 0
        tree = stage.tree(tampering)
        self.means = Means(self.keys, tree.topology, self.conductor, self.random)
        self.links = stage.links(self.conductor, tampering, self.ledger.witness)
        crews = self.crews(stage.hosted(tampering))
        self.processes = [
            Process(name, next(self.links), self.means, cells) for name, cells in crews.items()
        ]
        self.wardens = [Warden(f"keeper-{n}", next(self.links), self.means) for n in range(2)]
        self.late_link = next(self.links)
        cells = map(self.keys.cell, sorted(tree.topology.cells))
        self.streams = [self.keys.router(), *cells, self.keys.quiet()]

    def make_ledger(self) -> Ledger:
        """Where it is noted what happens."""
        return Ledger(self.stage.link, self.keys)

    def crews(self, hosted: Mapping[str, Hosted]) -> Mapping[str, Mapping[str, Hosted] | None]:
        """The cells that each process hosts, by its name; None for a router."""
        memories = {path: h for path, h in hosted.items() if path.endswith("/memory")}
        others = {path: h for path, h in hosted.items() if path not in memories}
        return {"router-0": None, "router-1": None, "worker-0": others, "worker-1": hosted,
                "worker-2": memories, "worker-3": hosted}  # fmt: skip

    def judge(self) -> Judge:
        """Whoever says what is wrong with it."""
        raise NotImplementedError

    # Life

    async def go_on(
        self,
        *,
        claiming: bool = False,
        reading: bool = True,
        withheld: Job | None = None,
        script: str | None = None,
        processes: Sequence[Process] | None = None,
        but: str | None = None,
    ) -> int:
        """Let every process do what it can; returns how much that was.

        Nothing is done of the job that is `withheld`, and no `script` is run. Processes that
        are not among `processes` do nothing, and nobody reads the stream `but`.
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
            sources = [source for source in process.sources() if source != but]
            found = await process.read(sources, 64) if reading else []
            for source in sources if claiming else ():
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
            if idle > 0:
                await self.tend()
            moved = await self.go_on(claiming=idle > 0) + await self._keep_all(claiming=idle > 0)
            idle = 0 if moved else idle + 1
            self.steps += moved
            self.judge_jobs()
            if self.steps > MOST_STEPS:
                self.ledger.complain("it does not come to rest")

    async def tend(self) -> None:
        """Do what is due where nothing moves by itself any more."""
        if self.ledger.counted["expelled"]:
            await self.adopt()
        if self.chances.sessions:
            await self.look_after_sessions()

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

    async def send_late(self) -> None:
        """A script arrives that its sender has given up, unless its server is gone."""
        late = self.conductor.late.pop(self.random.randrange(len(self.conductor.late)))
        self.events.append((f"{late.call.script.name} arrives late", None))
        if late.server == await self.late_link.open():
            await self.late_link.run_unasked(late.call)

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
