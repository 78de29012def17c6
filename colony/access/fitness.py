"""Fitness: whether the server may be given work, as this process knows it."""

import asyncio
import time
from typing import Final

from colony.errors import ServerUnfit
from colony.link import Link, check_server

LOOK_S: Final = 2.0


class Fitness:
    """Of a server that is looked at once in two seconds at most, and not while nobody asks."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._looked: float | None = None
        self._unfit: ServerUnfit | None = None
        self._looking = asyncio.Lock()

    async def check(self) -> None:
        """Returns where the server can carry a colony; raises ServerUnfit where it cannot."""
        if not self._fresh():
            async with self._looking:
                # Whoever held the lock may have looked a moment ago.
                if not self._fresh():
                    await self._look()
        if self._unfit is not None:
            raise ServerUnfit(**self._unfit.facts)

    def _fresh(self) -> bool:
        return self._looked is not None and time.monotonic() - self._looked < LOOK_S

    async def _look(self) -> None:
        self._unfit = None
        try:
            await check_server(self._link)
        except ServerUnfit as error:
            self._unfit = error
        self._looked = time.monotonic()
