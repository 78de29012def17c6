"""Play of agents: what comes of a seed, of a scene, and of a guard that is switched off."""

from collections.abc import Sequence
from dataclasses import replace

from colony.envelope import digest
from colony.lua.packing import pack
from colony.lua.registry import bind
from colony.runs.sessions import listed
from tests.simulator.agent_byhand import Scene
from tests.simulator.agent_mutation import AgentMutation
from tests.simulator.agent_tree import AGENT, SESSIONS, AgentTree
from tests.simulator.agent_world import AgentWorld
from tests.simulator.agents import Prompt
from tests.simulator.chances import Chances
from tests.simulator.conductor import Tampering
from tests.simulator.mutation import Shown, shown
from tests.simulator.play import Played, played_out
from tests.simulator.seeded_agents import SeededAgents
from tests.simulator.stage import Stage
from tests.simulator.tree import Tree

# What keeps nothing does not show what it should have kept.
KEEP_MS = 3_600_000


class AgentStage(Stage):
    """A stage with an agent and its sessions."""

    def grow(self, *, mends: bool) -> Tree:
        """The tree of the agent."""
        return AgentTree.grow()

    async def clear(self, tampering: Tampering) -> None:
        """An empty server with the tree published, and sessions in which nothing was said."""
        await super().clear(tampering)
        for session in SESSIONS:
            call = bind(
                "make_session",
                session=self.keys.agent_session(session),
                history=self.keys.history(session),
                sessions=self.keys.agent_sessions(""),
                owned=self.keys.agent_sessions(digest("")),
                fields=pack([["agent", AGENT.strip("/")], ["owner", ""]]),
                rows=pack([]),
                listed=listed(session, ""),
                keep_ms=KEEP_MS,
            )
            await self.link.run(call)


async def play_agents(
    stage: Stage, seed: int, *, chances: Chances, tampering: Tampering | None = None
) -> Played:
    """What comes of a seed."""
    tampering = tampering or Tampering()
    await stage.clear(tampering)
    world = SeededAgents(stage, seed, chances=chances, tampering=tampering)
    return await played_out(stage, seed, world, world.live)


async def play_agents_by_hand(
    stage: Stage, scene: Scene, prompts: Sequence[Prompt], *, tampering: Tampering | None = None
) -> Played:
    """What comes of a scene, without chance."""
    tampering = tampering or Tampering()
    await stage.clear(tampering)
    # What is said in a scene is said anew each time.
    fresh = [replace(prompt) for prompt in prompts]
    chances = Chances(fault=0)
    world = AgentWorld(stage, 0, chances=chances, tampering=tampering, prompts=fresh)
    return await played_out(stage, 0, world, lambda: scene(world))


async def shown_with_agents(
    stage: Stage, mutation: AgentMutation, *, start: int, most: int
) -> Shown | None:
    """What breaks without the guard: by chance in `most` seeds, else by hand; None for nothing."""
    found = await shown(stage, mutation, start=start, most=most, how=play_agents)
    return found or await shown_in_a_scene(stage, mutation)


async def shown_in_a_scene(stage: Stage, mutation: AgentMutation) -> Shown | None:
    """What breaks without the guard in the scene that is laid down for it."""
    if mutation.scene is None:
        return None
    tampering = mutation.tampering()
    played = await play_agents_by_hand(stage, mutation.scene, mutation.prompts, tampering=tampering)
    return Shown("by hand", played.violations[0].what) if played.violations else None
