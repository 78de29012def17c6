"""Events: the hops of a colony as a stream of server-sent events."""

import json
import re
from collections.abc import AsyncIterator
from typing import Final

from pydantic import JsonValue
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from colony.access import promptly
from colony.access.feed import Feed, Gap
from colony.api.problems import Problem, of_error
from colony.api.requests import MAX_NUMBER, Query, access_of
from colony.errors import ColonyError
from colony.live import LiveEvent
from colony.records import HopRecord

COMMENT_S: Final = 15
SEND_TIMEOUT_S: Final = 30
HEADERS: Final = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


_ENTRY = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")


class EventsQuery(Query):
    """Which trace; all of them without one. `after` is the id of the last event that was seen; the
    header `Last-Event-ID`, which a browser sends when it comes back, is newer."""

    trace_id: str | None = None
    after: str | None = None


async def get_events(request: Request) -> Response:
    """Hops as they are routed: all, or those of one trace to its end, from its start.

    Between the hops of one trace, an event `delta` is what a cell tells while it works: the text of
    an answer as it comes. Nobody keeps those.

    Only the events of one trace can be taken up again where they were left; on the stream of all,
    an event `gap` says that something was missed.
    """
    query = EventsQuery.of(request)
    access = access_of(request)
    seen = request.headers.get("last-event-id", query.after)
    if seen is not None and not _is_entry(seen):
        raise Problem(400, "bad_query", "after, or Last-Event-ID, is the id of an event")
    if query.trace_id is None:
        return _stream(_all(access.feed, missed=seen is not None))
    await promptly(access.traces.get(query.trace_id))
    return _stream(_one(access.feed, query.trace_id, f"({seen}" if seen else "-"))


def _stream(events: AsyncIterator[ServerSentEvent]) -> EventSourceResponse:
    return EventSourceResponse(events, headers=HEADERS, ping=COMMENT_S, send_timeout=SEND_TIMEOUT_S)


async def _all(feed: Feed, *, missed: bool) -> AsyncIterator[ServerSentEvent]:
    yield ServerSentEvent(comment="following", retry=1000)
    if missed:
        yield ServerSentEvent(event="gap", data=json.dumps({"lost": None}))
    async for item in feed.follow():
        if isinstance(item, Gap):
            yield ServerSentEvent(event="gap", data=json.dumps({"lost": item.lost}))
        else:
            yield _hop(item)


async def _one(feed: Feed, trace_id: str, after: str) -> AsyncIterator[ServerSentEvent]:
    try:
        async for item in feed.watch_trace(trace_id, after=after):
            yield _hop(item) if isinstance(item, HopRecord) else _delta(item)
    except ColonyError as error:
        problem = of_error(error)
        told: dict[str, JsonValue] = {"code": problem.code, "detail": problem.detail}
        yield ServerSentEvent(event="error", data=json.dumps(told))
    else:
        yield ServerSentEvent(event="end", data=json.dumps({"trace_id": trace_id}))


def _hop(record: HopRecord) -> ServerSentEvent:
    return ServerSentEvent(event="hop", id=record.entry, data=json.dumps(record.to_json()))


def _delta(event: LiveEvent) -> ServerSentEvent:
    # It cannot be asked for again, so it has no id.
    return ServerSentEvent(event="delta", data=json.dumps(event.to_json()))


def _is_entry(text: str) -> bool:
    found = _ENTRY.fullmatch(text)
    return found is not None and all(int(number) <= MAX_NUMBER for number in found.groups())
