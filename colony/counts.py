"""Counts: how often something was found that should not be, and set right or passed over.

Who repairs in a script counts there; who only sees something counts here.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from colony.keys import Keys
from colony.link import Link

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
