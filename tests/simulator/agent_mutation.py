"""A mutation of what agents rest on: a guard of a script of runs, switched off alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulator.agent_byhand import Scene
from tests.simulator.agents import Prompt
from tests.simulator.chances import Chances
from tests.simulator.mutation import Edit, Mutation

ORDINARY = Chances()
FAULTY = Chances(fault=0.16)
ENDING = Chances(ends=4)
DEADLY = Chances(burials=6)

# What every script does that settles a delivery.
STALE = "  return { 'stale' }\nend"


@dataclass(frozen=True)
class AgentMutation(Mutation):
    """A guard, and the scene that shows soon that it is off, with what is said in it."""

    scene: Scene | None = None
    prompts: Sequence[Prompt] = ()


def of(
    script: str,
    guard: str,
    passage: str,
    instead: str = "",
    chances: Chances = ORDINARY,
    *,
    scene: Scene | None = None,
    prompts: Sequence[Prompt] = (),
    seed: int = 0,
) -> AgentMutation:
    """A passage of a script that stands for a guard, and what is there without it."""
    edits = [Edit(script, passage, instead)]
    guard = f"{script} {guard}"
    return AgentMutation(guard, edits, chances, seed, scene=scene, prompts=prompts)
