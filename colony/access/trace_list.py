"""The trace list: which traces are open, quiet or ended, the newest first."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

from colony.errors import RecordBroken, TraceNotFound
from colony.keys import Keys
from colony.link import Link
from colony.traces import State, Trace, Traces

PAGE: Final = 100


class TraceList:
    """The traces of one partition, read a page at a time: however many there are, few are read."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._traces = Traces(link, keys)

    async def newest(self, state: State, *, limit: int) -> list[Trace]:
        """The records of traces in this state, by birth, by when they fell quiet or by end.

        A quiet trace is one with nothing under way that was neither taken up nor ended so far.
        """
        found: dict[str, Trace] = {}
        async with aclosing(self._pages(state, max(limit, PAGE))) as pages:
            async for ids in pages:
                records = await asyncio.gather(*(self._get(trace_id) for trace_id in ids))
                found |= {t.id: t for t in records if t is not None and t.state == state}
                if len(found) >= limit:
                    break
        return [*found.values()][:limit]

    def _pages(self, state: State, size: int) -> AsyncGenerator[list[str], None]:
        if state == "quiet":
            return self._reported(size)
        return self._sorted(
            self._keys.open_traces() if state == "open" else self._keys.ended_traces(), size
        )

    async def _sorted(self, key: str, size: int) -> AsyncGenerator[list[str], None]:
        start, page = 0, [b""]
        while page:
            page = await self._link.command("ZREVRANGE", key, start, start + size - 1)
            yield [trace_id.decode() for trace_id in page]
            start += len(page)

    async def _reported(self, size: int) -> AsyncGenerator[list[str], None]:
        # Whatever falls quiet is put there in the same step, and stays until it is attended to.
        end = "+"
        while page := await self._link.command(
            "XREVRANGE", self._keys.quiet(), end, "-", "COUNT", size
        ):
            yield [fields[1].decode(errors="replace") for _, fields in page]
            end = f"({page[-1][0].decode()}"

    async def _get(self, trace_id: str) -> Trace | None:
        # A record may have gone since its id was read; one that is broken tells no state.
        with suppress(TraceNotFound, RecordBroken):
            return await self._traces.get(trace_id)
        return None
