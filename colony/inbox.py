"""Inbox: what one consumer reads: new entries, its own unsettled ones, and those left behind."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from colony.codec import decode_head
from colony.errors import ColonyError
from colony.keys import GROUP
from colony.link import Link
from colony.streams import Broken, Delivery

Read = Delivery | Broken

_START = "0-0"


class Inbox:
    """The streams of one consumer. A blocking read keeps its link to itself, so it has its own."""

    def __init__(self, link: Link, consumer: str) -> None:
        self.link = link
        self.consumer = consumer
        self._cursors: dict[str, str] = {}

    async def read(self, sources: Sequence[str], *, count: int, block_ms: int | None) -> list[Read]:
        """New entries, at most `count` of each source; waits up to `block_ms` for the first."""
        blocking = () if block_ms is None else ("BLOCK", block_ms)
        reply = await self._read(sources, ">", ("COUNT", count, *blocking))
        return self._deliveries(reply, redelivered=False)

    async def history(self, source: str) -> list[Read]:
        """What this consumer's name holds unsettled of `source`, left by an earlier process."""
        found: list[Read] = []
        after = "0"
        while reply := await self._read([source], after, ("COUNT", 100)):
            entries = reply[0][1]
            if not entries:
                break
            found += self._deliveries(reply, redelivered=True)
            after = entries[-1][0].decode()
        return found

    async def reclaim(self, source: str, *, idle_ms: int, count: int) -> tuple[list[Read], int]:
        """Entries of `source` idle for `idle_ms`, whoever held them, now held here; and how many
        entries were found deleted under their holder.

        Each call goes on where the last one stopped, so that every pending entry is looked at.
        """
        cursor = self._cursors.get(source, _START)
        try:
            reply = await self.link.command(
                "XAUTOCLAIM", source, GROUP, self.consumer, idle_ms, cursor, "COUNT", count
            )
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self.make_groups([source])
            return [], 0
        self._cursors[source] = reply[0].decode()
        entries = self._deliveries([(source.encode(), reply[1])], redelivered=True)
        return entries, len(reply[2])

    async def make_groups(self, sources: Sequence[str]) -> None:
        """Make the consumer group of each source that lacks it, from the first entry on."""
        await make_groups(self.link, sources)

    async def _read(
        self, sources: Sequence[str], after: str, options: tuple[str | int, ...]
    ) -> Any:
        await self.link.open()
        command = ("XREADGROUP", "GROUP", GROUP, self.consumer, *options, "STREAMS", *sources)
        try:
            return await self.link.command(*command, *(after for _ in sources))
        except ResponseError as error:
            # Another text comes when the stream goes away under a read that waits for it.
            if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                raise
            await self.make_groups(sources)
            return []

    def _deliveries(self, reply: Any, *, redelivered: bool) -> list[Read]:
        server = self.link.server
        if not reply or server is None:
            return []
        return [
            _delivery(source.decode(), entry.decode(), server, fields, redelivered)
            for source, entries in reply
            for entry, fields in entries
            if fields
        ]


async def make_groups(link: Link, sources: Sequence[str]) -> None:
    """Make the consumer group of each source that lacks it, from the first entry on."""
    for source in sources:
        try:
            await link.command("XGROUP", "CREATE", source, GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


def _delivery(source: str, entry: str, server: str, fields: list[bytes], redelivered: bool) -> Read:
    values: Mapping[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
    head, body = values.get(b"head", b""), values.get(b"body", b"")
    try:
        return Delivery(source, entry, server, decode_head(head), body, redelivered)
    except ColonyError as error:
        return Broken(source, entry, server, head, body, "envelope_invalid", str(error))
