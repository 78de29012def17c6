"""Whatever crashes, is late, comes twice or is forgotten: nothing is lost, doubled or stalled.

Each guard is then switched off alone, so that every check is known to be able to fail.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.simulator.chances import various
from tests.simulator.mutation import Mutation, shown, shown_by_hand
from tests.simulator.mutations import MUTATIONS
from tests.simulator.play import hush, play, play_by_hand, staged
from tests.simulator.stage import Stage

SEEDS = range(20)
# Which seeds show that a guard is off depends on every script there is: so some are tried.
MOST_SEEDS = 30

BY_HAND = [mutation for mutation in MUTATIONS if mutation.by_hand]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(redis_binary: Path) -> AsyncIterator[Stage]:
    async with staged(redis_binary) as found:
        yield found


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with hush():
        yield


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_lost_doubled_or_stalled_whatever_happens(stage: Stage, seed: int) -> None:
    played = await play(stage, seed, chances=various(seed))

    assert not played.violations, played.story()


async def test_same_seed_takes_the_same_steps(stage: Stage) -> None:
    first, again = [await play(stage, 7, chances=various(7)) for _ in range(2)]

    assert (first.steps, first.counted) == (again.steps, again.counted)


@pytest.mark.parametrize("mutation", BY_HAND, ids=lambda mutation: mutation.guard)
async def test_narrow_interleaving_is_harmless(stage: Stage, mutation: Mutation) -> None:
    assert mutation.by_hand

    played = await play_by_hand(stage, mutation.by_hand, mutation.targets)

    assert not played.violations, played.story()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
async def test_simulator_notices_when_a_guard_is_off(stage: Stage, mutation: Mutation) -> None:
    if mutation.by_hand:
        found = await shown_by_hand(stage, mutation)
    else:
        found = await shown(stage, mutation, start=mutation.seed, most=MOST_SEEDS)

    assert found
