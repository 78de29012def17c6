"""Pressure: how much waits in a colony, and whether more may come in.

Only what comes from outside is ever refused. Inside the graph every step that is taken lets what
waits become less, so nothing there asks.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from colony.errors import Backlogged
from colony.keys import Keys
from colony.link import Link
from colony.topology.model import Topology

LOOK_S: Final = 0.25
# The rate at which a backlog falls is taken over so long.
WINDOW_S: Final = 10.0
MAX_RETRY_S: Final = 60


class Pressure:
    """The backlog of a colony as this process knows it: looked at a few times a second at most.

    What was admitted here counts as waiting until a look finds it: that is one which began after
    its birth came to an end. Nothing is refused without a look.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._looks: deque[tuple[float, int]] = deque()
        self._under_way = 0
        self._arrived = 0
        self._looking = asyncio.Lock()

    async def admit_one(self, topology: Topology) -> None:
        """Count one message more; raises Backlogged where as many wait as the tree allows.

        Whoever is let in says `arrived` when its birth has come to an end.
        """
        limit = topology.settings.ingress_backlog_max
        if not self._lets_in(limit):
            async with self._looking:
                # Whoever held the lock may have looked a moment ago.
                if not self._lets_in(limit) and not self._refuses(limit):
                    await self._look(topology)
            if not self._lets_in(limit):
                retry_s = seconds_until_room(self._looks, limit)
                raise Backlogged(waiting=self._waiting(), limit=limit, retry_after_s=retry_s)
        self._under_way += 1

    def arrived(self) -> None:
        """One that was let in was born, or will not be."""
        self._under_way -= 1
        self._arrived += 1

    def _waiting(self) -> int:
        return self._looks[-1][1] + self._under_way + self._arrived

    def _lets_in(self, limit: int) -> bool:
        return self._fresh() and self._waiting() < limit

    def _refuses(self, limit: int) -> bool:
        return self._fresh() and self._looks[-1][1] >= limit

    def _fresh(self) -> bool:
        return bool(self._looks) and time.monotonic() - self._looks[-1][0] < LOOK_S

    async def _look(self, topology: Topology) -> None:
        streams = [self._keys.router(), *(self._keys.cell(path) for path in topology.cells)]
        arrived = self._arrived
        lengths = await asyncio.gather(
            *(self._link.command("XLEN", key) for key in streams),
            # What is parked lies in no stream, and is memory that is taken all the same.
            self._link.command("HLEN", self._keys.parked()),
        )
        now = time.monotonic()
        while self._looks and now - self._looks[0][0] > WINDOW_S:
            self._looks.popleft()
        self._looks.append((now, sum(map(int, lengths))))
        self._arrived -= arrived


def seconds_until_room(looks: Sequence[tuple[float, int]], limit: int) -> int:
    """When to try again, as the backlog falls; soon, where one look tells nothing of that.

    A look is its time in seconds and how many waited then.
    """
    (then, before), (now, waiting) = looks[0], looks[-1]
    if now <= then or waiting < limit:
        return 1
    if before <= waiting:
        return MAX_RETRY_S
    needed_s = (waiting - limit + 1) * (now - then) / (before - waiting)
    return min(MAX_RETRY_S, max(1, math.ceil(needed_s)))
