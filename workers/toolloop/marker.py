"""Marker: what a view says of the rounds that have left it.

The same rounds make the same text, and it is short whatever they held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from colony.body import Entry
from colony.results import Kept, kept_at
from workers.toolloop.eviction import weight_of
from workers.toolloop.thread import Round

# So many of the newest handles are named. The others are in the rows.
MAX_HANDLES = 16


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
    return Entry.say("assistant", f"[{gone}{_kept(left)}]")


def _kept(left: Sequence[Holding]) -> str:
    sizes = {one.handle: one.size for found in left for one in found.kept}
    if not sizes:
        return ""
    named = [f"{size} bytes at {handle}" for handle, size in sizes.items()][-MAX_HANDLES:]
    more = len(sizes) - len(named)
    return f" Kept: {', '.join(named)}" + (f", and {more} before them." if more else ".")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
