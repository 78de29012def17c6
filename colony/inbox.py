"""Inbox: what one consumer reads: new entries, its own unsettled ones, and those left behind."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from colony.codec import decode_head
from colony.errors import ColonyError, ServerUnavailable
from colony.keys import GROUP, repairs_beside
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import bind
from colony.streams import Broken, Delivery

Read = Delivery | Broken
Reclaimed = tuple[bytes, list[bytes], int]

START: Final = "0-0"

log = get_logger("colony.inbox")


class Inbox:
    """The streams of one consumer.

    A read that waits holds up everything else on its link: it goes over `reader`, where there is
    one.
    """

    def __init__(self, link: Link, consumer: str, *, reader: Link | None = None) -> None:
        self.link = link
        self.reader = reader or link
        self.consumer = consumer
        self._cursors: dict[str, str] = {}

    async def read(self, sources: Sequence[str], *, count: int, block_ms: int | None) -> list[Read]:
        """New entries, at most `count` of each source; waits up to `block_ms` for the first."""
        blocking = () if block_ms is None else ("BLOCK", block_ms)
        link = self.link if block_ms is None else self.reader
        await self._agree()
        server, reply = await self._read(link, sources, ">", ("COUNT", count, *blocking))
        return [
            read_entry(source.decode(), entry, server, fields)
            for source, entries in reply
            for entry, fields in entries
        ]

    async def history(self, source: str) -> list[Read]:
        """What this consumer's name holds unsettled of `source`, left by an earlier process."""
        found: list[Read] = []
        after = "0"
        while True:
            server, reply = await self._read(self.link, [source], after, ("COUNT", 100))
            entries = reply[0][1] if reply else ()
            if not entries:
                return found
            found += await self._taken_up(source, server, entries)
            after = entries[-1][0].decode()

    async def reclaim(self, source: str, *, idle_ms: int, count: int) -> list[Read]:
        """Entries of `source` idle for `idle_ms`, whoever held them, now held here.

        Each call goes on where the last one stopped, so that every pending entry is looked at.
        Those that were deleted under their holder are counted, reported and forgotten.
        """
        server = await self.link.open()
        self._cursors[source], taken = await reclaim(
            self.link,
            source,
            self.consumer,
            idle_ms=idle_ms,
            cursor=self._cursors.get(source, START),
            count=count,
            server=server,
        )
        return [read_entry(source, entry, server, fields, times=n) for entry, fields, n in taken]

    async def _agree(self) -> None:
        # During a failover one link may still talk to the old server. What is read from one and
        # cannot be settled with the other would only be abandoned.
        if await self.link.open() != await self.reader.open():
            why = "two servers answer"
            await self.link.drop(why)
            await self.reader.drop(why)
            raise ServerUnavailable(detail=why)

    async def _taken_up(self, source: str, server: str, entries: Sequence[Any]) -> list[Read]:
        """Entries that somebody may have held before, with how often each was delivered."""
        lost = [entry for entry, fields in entries if not fields]
        if lost:
            await self._write_off(source, server, lost)
        kept = [(entry, fields) for entry, fields in entries if fields]
        pending = await asyncio.gather(
            *(
                self.link.command("XPENDING", source, GROUP, entry, entry, 1, server=server)
                for entry, _ in kept
            )
        )
        return [
            read_entry(source, entry, server, fields, times=int(found[0][3]))
            for (entry, fields), found in zip(kept, pending, strict=True)
            # Settled in between by whoever held it before.
            if found
        ]

    async def _write_off(self, source: str, server: str, lost: Sequence[bytes]) -> None:
        call = bind(
            "write_off",
            source=source,
            repairs=repairs_beside(source),
            group=GROUP,
            entries=lost,
        )
        answer = await self.link.run(call, server=server)
        _report_lost(source, answer[1])

    async def _read(
        self, link: Link, sources: Sequence[str], after: str, options: tuple[str | int, ...]
    ) -> tuple[str, Any]:
        server = await link.open()
        command = ("XREADGROUP", "GROUP", GROUP, self.consumer, *options, "STREAMS", *sources)
        try:
            reply = await link.command(*command, *(after for _ in sources), server=server)
        except ResponseError as error:
            # Another text comes when the stream goes away under a read that waits for it.
            if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                raise
            await make_groups(self.link, sources)
            reply = None
        return server, reply or []


async def reclaim(
    link: Link,
    source: str,
    consumer: str,
    *,
    idle_ms: int,
    cursor: str,
    count: int,
    server: str | None = None,
) -> tuple[str, list[Reclaimed]]:
    """Take entries of `source` idle for `idle_ms`; returns where to go on, and what was taken.

    Those that were deleted under their holder are counted, reported and forgotten.
    """
    call = bind(
        "reclaim",
        source=source,
        repairs=repairs_beside(source),
        group=GROUP,
        consumer=consumer,
        idle_ms=idle_ms,
        cursor=cursor,
        count=count,
    )
    answer = await link.run(call, server=server)
    if answer[0] == b"no_group":
        await make_groups(link, [source])
        return START, []
    _report_lost(source, answer[3])
    return answer[1].decode(), [(entry, fields, int(n)) for entry, fields, n in answer[2]]


async def make_groups(link: Link, sources: Sequence[str]) -> None:
    """Make the consumer group of each source that lacks it, from the first entry on."""
    for source in sources:
        try:
            await link.command("XGROUP", "CREATE", source, GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


def read_entry(
    source: str, entry: bytes, server: str, fields: Sequence[bytes], *, times: int = 1
) -> Read:
    """The delivery that an entry of a stream is, or a broken one."""
    values: Mapping[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
    head, body = values.get(b"head", b""), values.get(b"body", b"")
    try:
        return Delivery(source, entry.decode(), server, decode_head(head), body, times)
    except ColonyError as error:
        return Broken(source, entry.decode(), server, head, body, "envelope_invalid", str(error))


def _report_lost(source: str, entries: Iterable[bytes]) -> None:
    # Whose trace they were of is not known any more: an audit finds out.
    for entry in entries:
        log.error("entry_lost", source=source, entry=entry.decode())
