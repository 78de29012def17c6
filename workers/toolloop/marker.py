"""Marker: what a view says of the rounds that have left it.

The same rounds make the same text, and it is short whatever they held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from colony.body import Entry
from colony.results import Kept, kept_at
from workers.toolloop.eviction import weight_of
from workers.toolloop.kept import Named
from workers.toolloop.thread import Round


@dataclass(frozen=True, slots=True)
class Holding:
    """What a round holds: its calls, its bytes as they are in the rows, and where more is kept."""

    calls: int
    size: int
    kept: tuple[Kept, ...]

    @classmethod
    def of(cls, found: Round) -> Self:
        """What this round holds."""
        kept = (kept_at(entry.text or "") for entry in found.answers)
        return cls(
            calls=len(found.expected),
            size=weight_of([*found.said, *found.answers]),
            kept=tuple(one for one in kept if one is not None),
        )


def marker(left: Sequence[Holding]) -> Entry:
    """How much has left, and under which handles long results among it are kept whole."""
    rounds = _counted(len(left), "earlier round")
    calls = _counted(sum(found.calls for found in left), "call")
    size = _counted(sum(found.size for found in left), "byte")
    gone = f"{rounds} of this question, with {calls} and {size}, left this view."
    kept = Named.of(one for found in left for one in found.kept).text
    return Entry.say("assistant", f"[{gone} {kept}]" if kept else f"[{gone}]")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
