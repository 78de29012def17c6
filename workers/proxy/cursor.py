"""The cursor: which updates of a bot became births, and which is asked for next.

An update is confirmed by the next poll, whose offset is the mark; and the mark rises in the same
step as the update is born. So it is neither lost nor born twice, whoever is killed where.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from colony.host import Mark, Source
from workers.proxy.bot_api import Update

NAME: Final = "name"
SEEN_AT: Final = "seen_at"

# After a week without any update Telegram goes on at a number of its choice, which may be lower.
# It keeps no update longer than a day, so what is asked for without an offset by then is new.
SILENCE_MS: Final = 6 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the updates were taken, under the name of their numbering."""

    bot: str
    name: str
    mark: Mark
    seen_at: int
    now: int

    @classmethod
    async def read(cls, source: Source, bot: str) -> Self:
        """The cursor of a bot as all processes share it; each bot numbers its updates by itself."""
        state, now = await source.state(), await source.clock()
        name = state.get(_leaf(bot, NAME), f"updates of {bot}")
        seen_at = int(state.get(_leaf(bot, SEEN_AT), now))
        return cls(bot, name, await source.mark(name), seen_at, now)

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
        name = f"updates of {self.bot} after {self.mark.reached}" if anew else self.name
        now = str(await source.clock())
        await source.put_state({_leaf(self.bot, NAME): name, _leaf(self.bot, SEEN_AT): now})
        return name

    @property
    def _silent(self) -> bool:
        return self.now - self.seen_at > SILENCE_MS


def _leaf(bot: str, what: str) -> str:
    return f"cursor.{bot}.{what}"
