"""Reads: what is in a colony and what goes on there, as JSON."""

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import promptly
from colony.access.message_log import MAX_SCAN_BUDGET, SCAN_BUDGET, Wanted
from colony.access.registry import graph
from colony.api.requests import MAX_NUMBER, Limit, Millisecond, NoQuery, Query, access_of
from colony.blobs import Blobs
from colony.errors import BlobUnavailable
from colony.paths import ROOT, within
from colony.records import HopRecord, excerpt
from colony.traces import State


class RegistryQuery(Query):
    """Which cells."""

    path: str | None = None
    path_prefix: str | None = None
    type: str | None = None
    active: bool | None = None
    limit: Limit = 100


async def get_registry(request: Request) -> Response:
    """The cells of the newest topology, by path."""
    query = RegistryQuery.of(request)
    cells = [
        cell.to_json()
        for cell in await promptly(access_of(request).registry())
        if query.path in (None, cell.spec.path)
        and (query.path_prefix is None or within(cell.spec.path, query.path_prefix))
        and query.type in (None, cell.spec.cell.type)
        and query.active in (None, cell.active)
    ]
    return JSONResponse({"registry": cells[: query.limit]})


async def get_status(request: Request) -> Response:
    """The colony at one moment."""
    NoQuery.of(request)
    return JSONResponse({"status": (await promptly(access_of(request).status())).to_json()})


class GraphQuery(Query):
    """Which part of the graph."""

    scope: str = ROOT


async def get_graph(request: Request) -> Response:
    """Nodes and edges of the newest topology."""
    query = GraphQuery.of(request)
    return JSONResponse(
        {"graph": graph(await promptly(access_of(request).topology()), query.scope)}
    )


class TraceQuery(Query):
    """Which hops; `error` is a code, or `true` for any."""

    trace_id: str | None = None
    path_prefix: str | None = None
    correlation_id: str | None = None
    error: str | None = None
    since: Millisecond | None = None
    limit: Limit = 100


async def get_trace(request: Request) -> Response:
    """Hops in the order they were routed; with `trace_id`, the record of that trace as well."""
    query = TraceQuery.of(request)
    access = access_of(request)
    told: dict[str, JsonValue] = {}
    if query.trace_id is not None:
        record = (await promptly(access.traces.get(query.trace_id))).to_json()
        waits = await promptly(access.sessions.waits(query.trace_id))
        told["record"] = {**record, "waits": waits}
    wanted = Wanted(**query.model_dump(exclude={"limit"}))
    records = await promptly(access.messages.oldest(wanted, limit=query.limit))
    rows: list[JsonValue] = [record.to_json() for record in records]
    return JSONResponse({"trace": rows, **told})


class TracesQuery(Query):
    """Which traces."""

    state: State = "open"
    limit: Limit = 100


async def get_traces(request: Request) -> Response:
    """The records of traces, newest first."""
    query = TracesQuery.of(request)
    traces = access_of(request).trace_list
    found = await promptly(traces.newest(query.state, limit=query.limit))
    return JSONResponse({"traces": [trace.to_json() for trace in found]})


class MessagesQuery(Query):
    """Which messages. The two of `before` come from the last row of the page before.

    With `resolve_blob`, the content of a blob stands where otherwise its id does.
    """

    id: str | None = None
    trace_id: str | None = None
    parent_message_id: str | None = None
    correlation_id: str | None = None
    to_path_prefix: str | None = None
    from_path_prefix: str | None = None
    body_kind: Literal["inline", "blob"] | None = None
    since: Millisecond | None = None
    until: Millisecond | None = None
    before_created_at: Millisecond | None = None
    before_id: str | None = None
    limit: Limit = 100
    scan_budget: Annotated[int, Field(ge=1, le=MAX_SCAN_BUDGET)] = SCAN_BUDGET
    resolve_blob: bool = False

    @model_validator(mode="after")
    def _before_is_whole(self) -> Self:
        if (self.before_created_at is None) != (self.before_id is None):
            raise ValueError("before_created_at and before_id go together")
        return self

    def wanted(self) -> Wanted:
        """What the message log is asked for."""
        left_out = {"limit", "scan_budget", "before_created_at", "before_id", "resolve_blob"}
        before = None
        if self.before_created_at is not None and self.before_id is not None:
            before = (self.before_created_at, self.before_id)
        return Wanted(**self.model_dump(exclude=left_out), before=before)


async def get_messages(request: Request) -> Response:
    """The message log, newest first; `complete` tells whether all that is kept was looked at."""
    query = MessagesQuery.of(request)
    access = access_of(request)
    page = await promptly(
        access.messages.newest(query.wanted(), limit=query.limit, scan_budget=query.scan_budget)
    )
    records = page.records
    if query.resolve_blob:
        records = [await promptly(_resolved(access.blobs, record)) for record in records]
    rows: list[JsonValue] = [record.to_json() for record in records]
    return JSONResponse({"messages": rows, "complete": page.complete})


async def get_rounds(request: Request) -> Response:
    """The open rounds, the oldest first; those of one question where the path names it."""
    NoQuery.of(request)
    turn_id: str | None = request.path_params.get("turn_id")
    rounds = await promptly(access_of(request).rounds(turn_id=turn_id))
    return JSONResponse({"rounds": [found.to_json() for found in rounds]})


async def get_thread(request: Request) -> Response:
    """What is kept of a question: its requests without their bytes, and its rows."""
    NoQuery.of(request)
    found = await promptly(access_of(request).thread(request.path_params["question"]))
    told: dict[str, JsonValue] = {
        "question": found.question,
        "requests": [sent.to_json() for sent in found.requests],
        "rows": [row.to_json() for row in found.rows],
    }
    return JSONResponse({"thread": told})


class RequestQuery(Query):
    """Which request: the newest of an iteration, of the cell that asked first or of another."""

    iter: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    cell: str | None = None


async def get_request(request: Request) -> Response:
    """What a model was sent, byte for byte."""
    query = RequestQuery.of(request)
    access = access_of(request)
    found = await promptly(access.thread(request.path_params["question"]))
    body = await promptly(access.threads.body(found.chosen(query.iter, query.cell)))
    return Response(body, media_type="application/json")


async def _resolved(blobs: Blobs, record: HopRecord) -> HopRecord:
    """The record with the content of its blob, redacted; as it was where the blob is gone."""
    blob_id = record.body.get("blob_id") if isinstance(record.body, dict) else None
    if not isinstance(blob_id, str):
        return record
    with suppress(BlobUnavailable):
        return replace(record, body=excerpt(await blobs.get(blob_id), "full"))
    return record
