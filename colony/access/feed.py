"""The feed: the hops of a colony as they are routed.

Whoever follows the whole colony shares one poll with all others in the process, and has a buffer of
its own: one that reads too slowly is told how much it missed, and holds nobody up.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from colony.access.live_followers import LiveFollowers
from colony.errors import ServerUnavailable
from colony.keys import Keys
from colony.link import Link
from colony.live import LiveEvent
from colony.log import Outage, get_logger
from colony.records import HopRecord, read_record
from colony.traces import Traces

POLL_S: Final = 0.2
RETRY_S: Final = 1.0
BUFFER: Final = 512
BURST: Final = 64
MAX_TRACES: Final = 1_000
# An end is noticed even where its millisecond lies before the last poll's.
OVERLAP_MS: Final = 2_000

log = get_logger("colony.access.feed")


@dataclass(frozen=True, slots=True)
class Gap:
    """Hops that a follower was too slow for."""

    lost: int


@dataclass(slots=True, eq=False)
class _Follower:
    buffer: deque[HopRecord] = field(default_factory=deque)
    lost: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, record: HopRecord) -> None:
        if self.lost or len(self.buffer) >= BUFFER:
            self.lost += 1
        else:
            self.buffer.append(record)
        self.changed.set()


class Feed:
    """The hops of one partition. Of more than 1000 open traces, the newest are followed."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._traces = Traces(link, keys)
        self._followers: set[_Follower] = set()
        self._polling: asyncio.Task[None] | None = None
        self._live = LiveFollowers(link.url, keys)
        self._closed = False

    async def follow(self) -> AsyncIterator[HopRecord | Gap]:
        """Every hop that is routed from about now on, until the feed is closed."""
        follower = _Follower()
        self._followers.add(follower)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="feed")
        try:
            while not self._closed:
                await follower.changed.wait()
                follower.changed.clear()
                while follower.buffer:
                    yield follower.buffer.popleft()
                if follower.lost:
                    lost, follower.lost = follower.lost, 0
                    yield Gap(lost)
        finally:
            self._followers.discard(follower)

    def follow_trace(self, trace_id: str, *, after: str = "-") -> AsyncIterator[HopRecord]:
        """The hops of one trace behind the entry `after`, until it has ended and all are told.

        Raises TraceNotFound where there is no such trace.
        """
        return self._hops(trace_id, after)

    async def _hops(self, trace_id: str, after: str) -> AsyncGenerator[HopRecord]:
        while not self._closed:
            trace = await self._traces.get(trace_id)
            for record in await self._traces.log(trace_id, after=after):
                after = f"({record.entry}"
                yield record
            if trace.ended and trace.live <= 0:
                return
            await asyncio.sleep(POLL_S)

    async def watch_trace(
        self,
        trace_id: str,
        *,
        after: str = "-",
        begin: Callable[[], Awaitable[object]] | None = None,
    ) -> AsyncGenerator[HopRecord | LiveEvent]:
        """The hops of one trace as `follow_trace` has them, and between them what its cells tell.

        A follower that is too slow loses some of that, and one that comes late its beginning. A
        trace that `begin` opens is followed before.
        """
        with self._live.following(trace_id) as live:
            if begin is not None:
                await self._live.listening()
                await begin()
            async with aclosing(self._hops(trace_id, after)) as hops:
                coming = asyncio.ensure_future(anext(hops, None))
                try:
                    while True:
                        await _either(coming, live.changed)
                        # What was told before the hop was.
                        while live.buffer:
                            yield live.buffer.popleft()
                        if coming.done():
                            record = coming.result()
                            if record is None:
                                return
                            coming = asyncio.ensure_future(anext(hops, None))
                            yield record
                finally:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)

    def stop(self) -> None:
        """Let every follower come to an end."""
        self._closed = True
        for follower in self._followers:
            follower.changed.set()

    async def close(self) -> None:
        """Every follower comes to an end, and nothing is asked for any more."""
        self.stop()
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self._live.close()

    async def _poll(self) -> None:
        start: int | None = None
        cursors: dict[str, str] = {}
        while self._followers:
            try:
                now = await self._now()
                start = now - OVERLAP_MS if start is None else start
                cursors = {
                    trace_id: cursors.get(trace_id, f"{start}-0")
                    for trace_id in await self._recent(now - OVERLAP_MS)
                }
                await self._read(cursors)
                await asyncio.sleep(POLL_S)
            except ServerUnavailable as error:
                Outage.report(log, error)
                await asyncio.sleep(RETRY_S)

    async def _recent(self, since: int) -> list[str]:
        opened, ended = await asyncio.gather(
            self._traces.ids("open", limit=MAX_TRACES),
            self._link.command(
                "ZRANGE", self._keys.ended_traces(), "+inf", since, "BYSCORE", "REV",
                "LIMIT", 0, MAX_TRACES,
            ),
        )  # fmt: skip
        return [*dict.fromkeys([*opened, *(trace_id.decode() for trace_id in ended)])]

    async def _read(self, cursors: dict[str, str]) -> None:
        pages: list[Any] = await asyncio.gather(
            *(
                self._link.command("XRANGE", self._keys.log(trace_id), after, "+")
                for trace_id, after in cursors.items()
            )
        )
        found: list[HopRecord] = []
        for trace_id, page in zip(list(cursors), pages, strict=True):
            if page:
                cursors[trace_id] = f"({page[-1][0].decode()}"
                found += [read_record(entry, fields[1]) for entry, fields in page]
        for at, record in enumerate(sorted(found, key=lambda record: record.at), start=1):
            for follower in tuple(self._followers):
                follower.push(record)
            # A burst must not fill the buffer of somebody who keeps up.
            if at % BURST == 0:
                await asyncio.sleep(0)

    async def _now(self) -> int:
        seconds, micros = await self._link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


async def _either(coming: asyncio.Future[HopRecord | None], changed: asyncio.Event) -> None:
    changing = asyncio.ensure_future(changed.wait())
    try:
        either: set[asyncio.Future[Any]] = {coming, changing}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    changed.clear()
