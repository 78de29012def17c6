"""Endings: who in this process waits for which trace to end.

One poll asks for all of them at once, over a link that is shared: however many wait, none holds a
connection.
"""

import asyncio
from typing import Final

from colony.errors import ServerUnavailable
from colony.keys import Keys
from colony.link import Link
from colony.log import Outage, get_logger

POLL_S: Final = 0.02
RETRY_S: Final = 1.0
# About five times what asking for one takes, so that polls leave a process most of its time. Not
# measured: a loop that was blocked meanwhile would make a poll seem long.
PER_TRACE_S: Final = 0.0002

log = get_logger("colony.access.endings")


class Endings:
    """The traces whose end somebody waits for."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def wait(self, trace_id: str, timeout_s: float) -> bool:
        """Whether the trace ended, or was gone, within `timeout_s`."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(trace_id, set()).add(ended)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="endings")
        try:
            async with asyncio.timeout(timeout_s):
                await ended
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(trace_id, set())
            waiting.discard(ended)
            if not waiting:
                self._waiting.pop(trace_id, None)
        return True

    async def close(self) -> None:
        """Nobody is asked for any more; who still waits waits in vain."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll(self) -> None:
        while self._waiting:
            pause_s = max(POLL_S, PER_TRACE_S * len(self._waiting))
            try:
                await self._ask(list(self._waiting))
            except ServerUnavailable as error:
                Outage.report(log, error)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)

    async def _ask(self, trace_ids: list[str]) -> None:
        states = await asyncio.gather(
            *(self._link.command("HGET", self._keys.trace(i), "state") for i in trace_ids)
        )
        for trace_id, state in zip(trace_ids, states, strict=True):
            if state in (None, b"ended"):
                for ended in self._waiting.get(trace_id, ()):
                    if not ended.done():
                        ended.set_result(None)
