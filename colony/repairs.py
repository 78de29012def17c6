"""Repairs: what strangers and crashes left in the streams is set right, and counted.

An entry that was delivered and that nobody holds is an orphan; a name that no process has and that
holds nothing is forgotten. Any number may look: a script finds out and repairs in one step.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from colony.keys import GROUP, Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import bind
from colony.publication import Publication

Repair = Literal[
    "entries_lost",
    "entries_broken",
    "orphans_adopted",
    "consumers_forgotten",
    "traces_corrected",
    "stale_commits",
    "late_results",
    "claims_lost",
]

ORPHANS_S: Final = 5.0
CONSUMERS_S: Final = 60.0
CONSUMER_KEEP_MS: Final = 10 * 60 * 1000
PAGE: Final = 100
MOST_PAGES: Final = 10
# Holds an orphan until the next reclaim, which takes whatever is idle from whoever has it.
NOBODY: Final = "nobody"

_LONG_IDLE_MS: Final = 24 * 60 * 60 * 1000
_ROLES: Final = ("router", "worker")
_START: Final = "-"

log = get_logger("colony.repairs")


class Counts:
    """How often each thing was found broken since the partition began."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.key = keys.repairs()

    async def add(self, repair: Repair, by: int = 1) -> None:
        """Count what was seen by one who changes nothing in Redis over it."""
        await self.link.command("HINCRBY", self.key, repair, by)

    async def read(self) -> Mapping[str, int]:
        """Every count, those that are 0 included."""
        names = get_args(Repair)
        found = await self.link.command("HMGET", self.key, *names)
        return {name: int(count or 0) for name, count in zip(names, found, strict=True)}


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
                idle_ms=_LONG_IDLE_MS,
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
        cells = await cell_streams(self.link, self.keys, self.publication)
        return [self.keys.router(), *cells, self.keys.quiet()]


async def cell_streams(link: Link, keys: Keys, publication: Publication) -> list[str]:
    """The stream of every cell that was ever published."""
    known = await link.command("SMEMBERS", keys.cells())
    paths = {path.decode() for path in known} | publication.current.cells.keys()
    return [keys.cell(path) for path in sorted(paths)]
