"""Kept: how what is kept whole is named where its results are not shown any more."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from colony.results import Kept, handles_in

# So many of the newest handles are named. The others are in the rows.
MAX_HANDLES = 16

_ONE = r"[0-9]{1,15} bytes at blob:[0-9A-Za-z@._-]{1,128}"
_NAMED = re.compile(rf"Kept: {_ONE}(?:, {_ONE})*(?:, and (?P<before>[0-9]{{1,9}}) before them)?\.")


@dataclass(frozen=True, slots=True)
class Named:
    """The sizes by handle, the oldest first, and how many there were before them."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    before: int = 0

    @classmethod
    def of(cls, kept: Iterable[Kept]) -> Self:
        """These, each once."""
        return cls({one.handle: one.size for one in kept})

    @classmethod
    def read(cls, text: str) -> Self:
        """What a text names that is the `text` of others; of any other text nothing."""
        found = _NAMED.fullmatch(text)
        if found is None:
            return cls()
        sizes = re.findall(r"([0-9]+) bytes at", text)
        return cls(
            dict(zip(handles_in(text), map(int, sizes), strict=True)), int(found["before"] or 0)
        )

    def and_then(self, newer: "Named") -> "Named":
        """These and newer ones behind them."""
        return Named({**self.sizes, **newer.sizes}, self.before + newer.before)

    @property
    def text(self) -> str:
        """Where they are, in a sentence; nothing where there are none."""
        if not self.sizes:
            return ""
        named = [f"{size} bytes at {handle}" for handle, size in self.sizes.items()][-MAX_HANDLES:]
        before = self.before + len(self.sizes) - len(named)
        return f"Kept: {', '.join(named)}" + (f", and {before} before them." if before else ".")
