"""Runs of agents: whatever crashes, is late or comes twice, each claim of a run holds.

A session takes one run at a time; a run has one result, last; an ask is answered once, and what
waits for it is let go once. Each guard is then switched off alone.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.simulator.agent_mutation import AgentMutation
from tests.simulator.agent_mutations import AGENT_MUTATIONS
from tests.simulator.agent_play import (
    AgentStage,
    play_agents,
    play_agents_by_hand,
    shown_in_a_scene,
    shown_with_agents,
)
from tests.simulator.chances import various
from tests.simulator.play import hush, staged
from tests.simulator.stage import Stage

SEEDS = range(6)
# Which seeds show that a guard is off depends on every script there is: so some are tried.
MOST_SEEDS = 30

SCENES = [mutation for mutation in AGENT_MUTATIONS if mutation.scene]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(redis_binary: Path) -> AsyncIterator[Stage]:
    async with staged(redis_binary, AgentStage) as found:
        yield found


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with hush():
        yield


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_claim_of_a_run_holds_whatever_happens(stage: Stage, seed: int) -> None:
    played = await play_agents(stage, seed, chances=various(seed))

    assert not played.violations, played.story()


async def test_same_seed_of_agents_takes_the_same_steps(stage: Stage) -> None:
    first, again = [await play_agents(stage, 3, chances=various(3)) for _ in range(2)]

    assert (first.steps, first.counted) == (again.steps, again.counted)


@pytest.mark.parametrize("mutation", SCENES, ids=lambda mutation: mutation.guard)
async def test_narrow_scene_is_harmless(stage: Stage, mutation: AgentMutation) -> None:
    assert mutation.scene

    played = await play_agents_by_hand(stage, mutation.scene, mutation.prompts)

    assert not played.violations, played.story()


@pytest.mark.parametrize("mutation", AGENT_MUTATIONS, ids=lambda mutation: mutation.guard)
async def test_simulator_notices_when_a_guard_of_runs_is_off(
    stage: Stage, mutation: AgentMutation
) -> None:
    if mutation.scene:
        found = await shown_in_a_scene(stage, mutation)
    else:
        found = await shown_with_agents(stage, mutation, start=mutation.seed, most=MOST_SEEDS)

    assert found
