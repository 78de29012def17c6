"""The cursor: which updates of a bot became births, and which is asked for next.

An update is confirmed by the next poll, whose offset is the mark; and the mark rises in the same
step as the update is born. So it is neither lost nor born twice, whoever is killed where.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from colony.cell import Mark, Source
from workers.proxy.bot_api import Update

NAME: Final = "cursor.name"
SEEN_AT: Final = "cursor.seen_at"

# After a week without any update Telegram goes on at a number of its choice, which may be lower.
# It keeps no update longer than a day, so what is asked for without an offset by then is new.
SILENCE_MS: Final = 6 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the updates were taken, under the name of their numbering."""

    name: str
    mark: Mark
    seen_at: int
    now: int

    @classmethod
    async def read(cls, source: Source) -> Self:
        """The cursor as all processes share it."""
        state, now = await source.state(), await source.clock()
        name = state.get(NAME, "updates")
        return cls(name, await source.mark(name), int(state.get(SEEN_AT, now)), now)

    @property
    def offset(self) -> int | None:
        """What is asked for next; None where that is whatever there is."""
        if self.mark.reached < 0 or self._silent:
            return None
        return self.mark.reached + 1

    async def note(self, source: Source, updates: Sequence[Update]) -> str:
        """Note that these came, before any is born; returns the name of their mark."""
        anew = self._silent and updates[0].update_id < self.mark.reached
        # The same for every process that sees it begin.
        name = f"updates after {self.mark.reached}" if anew else self.name
        await source.put_state({NAME: name, SEEN_AT: str(await source.clock())})
        return name

    @property
    def _silent(self) -> bool:
        return self.now - self.seen_at > SILENCE_MS
