"""A mutation: a guard switched off alone, and whether the simulator finds out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from colony.lua.registry import Script, scripts
from tests.simulator.byhand import Interleaving
from tests.simulator.chances import Chances
from tests.simulator.conductor import Tampering
from tests.simulator.play import Played, play, play_by_hand
from tests.simulator.stage import Stage

ORDINARY = Chances()


@dataclass(frozen=True)
class Edit:
    """A passage of a script, and what stands there instead."""

    script: str
    passage: str
    instead: str


@dataclass(frozen=True)
class Mutation:
    """A guard, what switches it off, and the chances and the seed with which that shows soon."""

    guard: str
    edits: Sequence[Edit] = ()
    chances: Chances = ORDINARY
    seed: int = 0
    trusting: frozenset[str] = frozenset()
    never_asks: bool = False
    mends: bool = True
    never_looks: bool = False
    by_hand: Interleaving | None = None
    targets: Sequence[str] = ()

    def tampering(self) -> Tampering:
        """The guard switched off; raises AssertionError where a script has no such passage."""
        sources: dict[str, Script] = {}
        for edit in self.edits:
            script = sources.get(edit.script) or scripts()[edit.script]
            text = script.source.decode()
            assert text.count(edit.passage) == 1, f"{edit.script}: not once: {edit.passage}"
            changed = text.replace(edit.passage, edit.instead)
            sources[edit.script] = Script.parse(edit.script, changed.encode())
        return Tampering(
            sources=sources,
            trusting=self.trusting,
            never_asks=self.never_asks,
            mends=self.mends,
            never_looks=self.never_looks,
        )


@dataclass(frozen=True)
class Shown:
    """What broke without a guard, and how that came about."""

    how: str
    what: str


class Play(Protocol):
    """How a seed is played."""

    async def __call__(
        self, stage: Stage, seed: int, *, chances: Chances, tampering: Tampering
    ) -> Played:
        """What comes of it."""


async def shown(
    stage: Stage, mutation: Mutation, *, start: int, most: int, how: Play = play
) -> Shown | None:
    """What breaks without the guard: by chance in `most` seeds, else by hand; None for nothing."""
    for seed in range(start, start + most):
        tampering = mutation.tampering()
        played = await how(stage, seed, chances=mutation.chances, tampering=tampering)
        if played.violations:
            return Shown(f"{seed - start + 1} seeds", played.violations[0].what)
    return await shown_by_hand(stage, mutation)


async def shown_by_hand(stage: Stage, mutation: Mutation) -> Shown | None:
    """What breaks without the guard in the interleaving that is laid down for it."""
    if mutation.by_hand is None:
        return None
    played = await play_by_hand(
        stage, mutation.by_hand, mutation.targets, tampering=mutation.tampering()
    )
    return Shown("by hand", played.violations[0].what) if played.violations else None
