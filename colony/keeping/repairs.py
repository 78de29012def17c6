"""Repairs: what strangers and crashes left in the streams is set right, and counted.

An entry that was delivered and that nobody holds is an orphan; a name that no process has and that
holds nothing is forgotten. Any number may look: a script finds out and repairs in one step.
"""

from typing import Final

from colony.keys import GROUP, LONG_IDLE_MS, Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import bind
from colony.publication import Publication

ORPHANS_S: Final = 5.0
CONSUMERS_S: Final = 60.0
CONSUMER_KEEP_MS: Final = 10 * 60 * 1000
PAGE: Final = 100
MOST_PAGES: Final = 10
# Holds an orphan until the next reclaim, which takes whatever is idle from whoever has it.
NOBODY: Final = "nobody"

_ROLES: Final = ("router", "worker")
_START: Final = "-"

log = get_logger("colony.repairs")


class Repairs:
    """The sweeps over the streams of one partition."""

    def __init__(self, link: Link, keys: Keys, publication: Publication) -> None:
        self.link = link
        self.keys = keys
        self.publication = publication
        self._cursors: dict[str, str] = {}

    async def adopt_orphans(self) -> int:
        """Let each entry that was delivered and that nobody holds be reclaimed; returns how many.

        What was not delivered yet is not looked at. Of a stream that has much in hand, each call
        looks at a part and the next one goes on there.
        """
        return sum([await self._adopt(source) for source in await self._sources()])

    async def forget_consumers(self, *, idle_ms: int = CONSUMER_KEEP_MS) -> int:
        """Forget each name that holds nothing, was idle so long, and whose slot nobody leases."""
        forgotten = 0
        for source in await self._sources():
            call = bind(
                "forget_consumers",
                source=source,
                repairs=self.keys.repairs(),
                slots=[self.keys.slots(role) for role in _ROLES],
                group=GROUP,
                idle_ms=idle_ms,
                roles=_ROLES,
            )
            forgotten += int((await self.link.run(call))[1])
        return forgotten

    async def _adopt(self, source: str) -> int:
        adopted = 0
        for _ in range(MOST_PAGES):
            last = self._cursors.get(source)
            call = bind(
                "adopt",
                source=source,
                repairs=self.keys.repairs(),
                group=GROUP,
                consumer=NOBODY,
                start=f"({last}" if last else _START,
                count=PAGE,
                idle_ms=LONG_IDLE_MS,
            )
            answer = await self.link.run(call)
            if answer[0] == b"no_group":
                # Whoever reads it makes one that delivers everything anew.
                return adopted
            adopted += int(answer[1])
            self._cursors[source] = answer[2].decode()
            if not answer[2]:
                break
        if adopted:
            log.error("orphans_adopted", source=source, count=adopted)
        return adopted

    async def _sources(self) -> list[str]:
        cells = await self.publication.cell_streams()
        return [self.keys.router(), *cells, self.keys.quiet()]
