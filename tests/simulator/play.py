"""Play: one seed after the other, and what came of them."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from colony.testing.redis_server import RedisServer
from tests.simulator.byhand import Interleaving
from tests.simulator.chances import Chances
from tests.simulator.colony import Colony
from tests.simulator.conductor import Tampering
from tests.simulator.ledger import Violation
from tests.simulator.seeded_world import SeededWorld
from tests.simulator.stage import Stage
from tests.simulator.tree import LATE, TURN
from tests.simulator.world import World

LAST_EVENTS = 40


@dataclass
class Played:
    """What came of one seed."""

    seed: int
    steps: int
    counted: Counter[str]
    violations: list[Violation]
    events: list[str] = field(default_factory=list)

    def story(self) -> str:
        """The violations, and what happened before, as a text."""
        told = [
            f"{v.what}" + (f" (trace {v.trace_id})" if v.trace_id else "") for v in self.violations
        ]
        return "\n".join([f"seed {self.seed}:", *(f"  {t}" for t in told[:8]), *self.events])


@asynccontextmanager
async def staged(binary: Path, kind: type[Stage] = Stage) -> AsyncIterator[Stage]:
    """A stage over a server of its own.

    What a server has answered it has written, though not to the disk: it is killed, the machine is
    not, and what is lost is cut off its log.
    """
    with RedisServer.start(binary, fsync="no") as server:
        async with kind(server) as stage:
            yield stage


async def play(
    stage: Stage, seed: int, *, chances: Chances, tampering: Tampering | None = None
) -> Played:
    """What comes of a seed."""
    tampering = tampering or Tampering()
    await stage.clear(tampering)
    world = SeededWorld(stage, seed, chances=chances, tampering=tampering)
    return await played_out(stage, seed, world, world.live)


async def play_by_hand(
    stage: Stage,
    interleaving: Interleaving,
    targets: Sequence[str],
    *,
    tampering: Tampering | None = None,
) -> Played:
    """What comes of an interleaving that is laid down, without chance."""
    tampering = tampering or Tampering()
    await stage.clear(tampering)
    chances = Chances(fault=0, sessions=("one",) if {*targets} & {TURN, LATE} else ())
    world = World(stage, 0, chances=chances, tampering=tampering, targets=targets)
    return await played_out(stage, 0, world, lambda: interleaving(world))


async def played_out(
    stage: Stage, seed: int, world: Colony, act: Callable[[], Awaitable[None]]
) -> Played:
    """What comes of a world in which somebody acts, and which then comes to rest."""
    stage.audience = world
    judge = world.judge()
    try:
        await act()
        if not world.ledger.violations:
            await judge.look()
        if not world.ledger.violations:
            await world.rest()
        if not world.ledger.violations:
            await judge.judge()
    finally:
        stage.audience = None
        await world.conductor.abort(lambda job: True)
    violations = world.ledger.violations
    about = {violation.trace_id for violation in violations}
    told = [
        f"    {what}" + (f" [{trace_id[:8]}]" if trace_id else "")
        for what, trace_id in world.events
        if trace_id is None or about & {trace_id, None}
    ]
    return Played(seed, world.steps, world.ledger.counted, violations, told[-LAST_EVENTS:])


@contextmanager
def hush() -> Iterator[None]:
    """Nothing is said of what colony logs: faults are what is played."""
    loggers = [logging.getLogger(name) for name in ("colony", "workers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
