"""The conductor: nobody asks the server anything until it is their turn.

A job is what one actor does with one thing. It stops before every script, and goes on when the
conductor says so, with the fate of that script. One job moves at a time, so that whoever picks the
next one has picked the whole interleaving.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from colony.errors import ServerChanged, ServerUnavailable
from colony.link import Link
from colony.lua.registry import Argument, Call, Script

# A machine may be slow; a job that waits for another one waits for ever.
STUCK_S = 60.0
# Commands after which the same actor asks more: a step of their own.
_STEPS = frozenset(("SMEMBERS", "XACK"))


class Fate(Enum):
    """What becomes of a script and of whoever sends it."""

    ANSWERED = auto()
    UNSENT = auto()
    UNANSWERED = auto()
    LATE = auto()
    """Its sender hears nothing, and it happens some time later."""
    SENDER_DIES = auto()
    """It happens, and its sender is gone before the answer comes."""


class Job:
    """Something that an actor is about."""

    def __init__(
        self, what: str, owner: object, subject: object = None, *, slow: bool = False
    ) -> None:
        self.what = what
        self.subject = subject
        self.slow = slow
        self.owner = owner
        self.moving = True
        self.begun_after_end = False
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None


@dataclass(eq=False)
class Parked:
    """A job before a script or a command."""

    job: Job
    what: str
    is_script: bool
    fate: asyncio.Future[Fate]


@dataclass
class Late:
    """A script that is still under way after its sender has given it up."""

    call: Call
    server: str


JOB: ContextVar[Job | None] = ContextVar("job", default=None)


class Conductor:
    """The jobs of a world, and which of them may be next."""

    def __init__(self) -> None:
        self.parked: list[Parked] = []
        self.late: list[Late] = []
        self.jobs: list[Job] = []
        self.failed: list[Job] = []
        self._moving = 0
        self._still = asyncio.Event()
        self._still.set()

    def start(self, job: Job, coroutine: Coroutine[Any, Any, None]) -> Job:
        """Let a job begin; it moves until it stops before a script."""
        self.jobs.append(job)
        self._count(+1)
        job.task = asyncio.create_task(self._watched(job, coroutine))
        return job

    async def stillness(self) -> None:
        """Return when every job has stopped or ended."""
        async with asyncio.timeout(STUCK_S):
            await self._still.wait()

    async def at(self, what: str, *, is_script: bool) -> Fate:
        """Stop before `what` until it is told to happen; whoever has no job does not stop."""
        job = JOB.get()
        if job is None:
            return Fate.ANSWERED
        parked = Parked(job, what, is_script, asyncio.get_running_loop().create_future())
        self.parked.append(parked)
        self._stop(job)
        return await parked.fate

    async def for_ever(self) -> None:
        """Stop and never go on: the process of the job is about to die."""
        job = JOB.get()
        assert job is not None
        self._stop(job)
        await asyncio.get_running_loop().create_future()

    async def release(self, parked: Parked, fate: Fate) -> None:
        """Let a job go on until it stops again."""
        self.parked.remove(parked)
        parked.job.moving = True
        self._count(+1)
        parked.fate.set_result(fate)
        await self.stillness()

    async def abort(self, doomed: Callable[[Job], bool]) -> int:
        """End jobs where they stand, as the death of their process does."""
        ending = [job for job in self.jobs if doomed(job)]
        self.parked = [parked for parked in self.parked if parked.job not in ending]
        tasks = [job.task for job in ending if job.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.stillness()
        return len(ending)

    def _stop(self, job: Job) -> None:
        job.moving = False
        self._count(-1)

    def _count(self, by: int) -> None:
        self._moving += by
        if self._moving:
            self._still.clear()
        else:
            self._still.set()

    async def _watched(self, job: Job, coroutine: Coroutine[Any, Any, None]) -> None:
        JOB.set(job)
        try:
            await coroutine
        except asyncio.CancelledError:
            pass
        except Exception as error:
            job.error = error
            self.failed.append(job)
        finally:
            self.jobs.remove(job)
            if job.moving:
                self._stop(job)


@dataclass
class Tampering:
    """What of the guards is switched off: other texts of scripts, and other ways of a link."""

    sources: dict[str, Script] = field(default_factory=dict)
    trusting: frozenset[str] = frozenset()
    """Scripts that are sent to any server."""
    never_asks: bool = False
    mends: bool = True
    never_looks: bool = False

    def of(self, call: Call) -> Call:
        """The call of the script as it is to be run."""
        other = self.sources.get(call.script.name)
        return replace(call, script=other) if other else call


Witness = Callable[[Call, Any], Coroutine[Any, Any, None]]


class SteppedLink(Link):
    """A link that waits for its turn before each script, and whose scripts have a fate."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.conductor = Conductor()
        self.tampering = Tampering()
        self.witness: Witness = _nobody

    def join(self, conductor: Conductor, tampering: Tampering, witness: Witness) -> None:
        """Take part in a world."""
        self.conductor, self.tampering, self.witness = conductor, tampering, witness

    async def run(self, call: Call, *, server: str | None = None) -> Any:
        """The answer of a script, if it is its fate to be sent and answered."""
        fate = await self.conductor.at(call.script.name, is_script=True)
        if fate is Fate.UNSENT:
            raise ServerUnavailable(detail="unsent, says the simulator")
        if fate is Fate.LATE:
            now = await self.open()
            if server is not None and server != now and call.script.name not in self._trusting:
                raise ServerChanged(expected=server, found=now)
            self.conductor.late.append(Late(call, now))
            raise ServerUnavailable(detail="unanswered, says the simulator")
        answer = await self.run_unasked(call, server=server)
        if fate is Fate.SENDER_DIES:
            await self.conductor.for_ever()
        if fate is Fate.UNANSWERED:
            raise ServerUnavailable(detail="unanswered, says the simulator")
        return answer

    async def run_unasked(self, call: Call, *, server: str | None = None) -> Any:
        """The answer of a script, at once, before the eyes of the witness."""
        tied = None if call.script.name in self._trusting else server
        answer = await super().run(self.tampering.of(call), server=tied)
        await self.witness(call, answer)
        return answer

    async def command(self, *parts: Argument, server: str | None = None) -> Any:
        """The answer of a command; some wait for their turn too."""
        if parts[0] in _STEPS:
            fate = await self.conductor.at(str(parts[0]), is_script=False)
            if fate is Fate.SENDER_DIES:
                await self.conductor.for_ever()
        return await super().command(*parts, server=server)

    @property
    def _trusting(self) -> frozenset[str]:
        return self.tampering.trusting


async def _nobody(call: Call, answer: Any) -> None:
    """Nothing is noted."""
