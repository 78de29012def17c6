"""The trace list: which traces are open, quiet or ended, the newest first."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.envelope import digest
from colony.errors import RecordBroken, TraceNotFound
from colony.keys import Keys
from colony.link import Link
from colony.records import EXCERPT_CHARS, Bodies, excerpt, read_record
from colony.sessions import Sessions
from colony.traces import State, Trace, Traces

PAGE: Final = 100
# So many ended traces are looked at for those of one session.
SCAN_BUDGET: Final = 5_000


@dataclass(frozen=True, slots=True)
class ListedTrace:
    """A trace, the beginning of what it was asked, and the trace of its session it waits for.

    `question` is None where no text of it is kept in its log, and none waits.
    """

    trace: Trace
    question: str | None
    waits_for: str | None

    def to_json(self) -> dict[str, JsonValue]:
        """The record of the trace, and what else is known of it."""
        return {
            **self.trace.to_json(),
            "question": self.question,
            "waits_for": self.waits_for,
        }


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Traces of a session, and whether all that are kept were looked at or enough were found."""

    traces: list[Trace]
    complete: bool


class TraceList:
    """The traces of one partition, read a page at a time: however many there are, few are read."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._traces = Traces(link, keys)
        self._sessions = Sessions(link, keys)

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

    async def of_session(
        self, session: str, state: State, *, limit: int, scan_budget: int = SCAN_BUDGET
    ) -> SessionPage:
        """The traces of a session in this state, the newest first.

        Those that have not ended are found by their places in the session. Of all that have ended
        the newest are looked at, at most `scan_budget` of them.
        """
        ended = state == "ended"
        key = self._keys.ended_traces() if ended else self._keys.order(digest(session))
        found: dict[str, Trace] = {}
        looked_at = 0
        async with aclosing(self._sorted(key, PAGE)) as pages:
            async for ids in pages:
                named = await asyncio.gather(*map(self._session, ids))
                own = [i for i, name in zip(ids, named, strict=True) if name == session]
                records = await asyncio.gather(*map(self._get, own))
                found |= {t.id: t for t in records if t is not None and t.state == state}
                looked_at += len(ids)
                if len(found) >= limit:
                    break
                if ended and looked_at >= scan_budget:
                    return SessionPage([*found.values()], complete=len(ids) < PAGE)
        return SessionPage([*found.values()][:limit], complete=True)

    async def described(self, traces: Iterable[Trace], bodies: Bodies) -> list[ListedTrace]:
        """Traces with what they were asked, and whom they wait for.

        `bodies` is what the tree lets be seen of bodies, of those that wait as well.
        """
        return [*await asyncio.gather(*(self._described(trace, bodies) for trace in traces))]

    async def _described(self, trace: Trace, bodies: Bodies) -> ListedTrace:
        question, waits_for = await asyncio.gather(
            self._question(trace.id),
            self._sessions.waits_for(trace.id, None if trace.ended else trace.session),
        )
        # What waits was routed nowhere so far, and no log tells of it.
        if question is None and waits_for is not None and bodies != "none":
            parked = await self._sessions.parked(trace.id)
            question = next((_asked(excerpt(body, "excerpt")) for body in parked), None)
        return ListedTrace(trace, question, waits_for)

    async def _question(self, trace_id: str) -> str | None:
        first = await self._link.command("XRANGE", self._keys.log(trace_id), "-", "+", "COUNT", 1)
        bodies = (read_record(entry, fields[1]).body for entry, fields in first)
        return next(map(_asked, bodies), None)

    async def _session(self, trace_id: str) -> str:
        name = await self._link.command("HGET", self._keys.trace(trace_id), "session")
        return (name or b"").decode(errors="replace")

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


def _asked(body: JsonValue) -> str | None:
    """The beginning of what a user said last in a body."""
    messages = body.get("messages") if isinstance(body, dict) else None
    for entry in reversed(messages if isinstance(messages, list) else []):
        text = entry.get("text") if isinstance(entry, dict) else None
        if isinstance(text, str) and isinstance(entry, dict) and entry.get("origin") == "user":
            return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"
    return None
