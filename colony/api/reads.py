"""Reads: what is in a colony and what goes on there, as JSON."""

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import promptly
from colony.access.documents import PIECE_BYTES
from colony.access.message_log import MAX_SCAN_BUDGET, SCAN_BUDGET, Wanted
from colony.access.registry import graph
from colony.api.requests import MAX_NUMBER, Limit, Millisecond, NoQuery, Query, access_of
from colony.blobs import Blobs
from colony.errors import BlobUnavailable
from colony.paths import ROOT, within
from colony.records import HopRecord, excerpt
from colony.traces import State

# So much of a document is answered with at once.
MOST_BYTES: Final = 16 * 1024 * 1024


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
        found = await promptly(access.traces.get(query.trace_id))
        turn = await promptly(access.sessions.waits_for(found.id, found.session))
        told["record"] = {**found.to_json(), "waits_for": turn}
    wanted = Wanted(**query.model_dump(exclude={"limit"}))
    records = await promptly(access.messages.oldest(wanted, limit=query.limit))
    rows: list[JsonValue] = [record.to_json() for record in records]
    return JSONResponse({"trace": rows, **told})


class TracesQuery(Query):
    """Which traces; `session` may not be empty."""

    state: State = "open"
    session: Annotated[str, Field(min_length=1)] | None = None
    limit: Limit = 100


async def get_traces(request: Request) -> Response:
    """The records of traces, newest first; with `session`, whether all of its were looked for."""
    query = TracesQuery.of(request)
    access = access_of(request)
    traces = access.trace_list
    told: dict[str, JsonValue] = {}
    if query.session is None:
        found = await promptly(traces.newest(query.state, limit=query.limit))
    else:
        page = await promptly(traces.of_session(query.session, query.state, limit=query.limit))
        found, told = page.traces, {"complete": page.complete}
    rows: list[JsonValue] = [t.to_json() for t in await promptly(access.described(found))]
    return JSONResponse({"traces": rows, **told})


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
    """What is kept of a question: its requests without their bytes, its rows and its answers."""
    NoQuery.of(request)
    found = await promptly(access_of(request).thread(request.path_params["question"]))
    told: dict[str, JsonValue] = {
        "question": found.question,
        "requests": [sent.to_json() for sent in found.requests],
        "rows": [row.to_json() for row in found.rows],
        "answers": [row.to_json() for row in found.answers],
        "waits_for": found.waits_for,
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


class DocumentQuery(Query):
    """Which bytes of a document."""

    offset: Annotated[int, Field(ge=0, le=MAX_NUMBER)] = 0
    limit: Annotated[int, Field(ge=1, le=MOST_BYTES)] = PIECE_BYTES


async def get_document(request: Request) -> Response:
    """A range of a long result, byte for byte; `Document-Size` says how many bytes there are."""
    query = DocumentQuery.of(request)
    documents = access_of(request).documents
    found = await promptly(documents.find(request.path_params["handle"]))
    data = await promptly(documents.read(found, offset=query.offset, limit=query.limit))
    headers = {"Document-Size": str(found.size)}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def _resolved(blobs: Blobs, record: HopRecord) -> HopRecord:
    """The record with the content of its blob, redacted; as it was where the blob is gone."""
    if record.blob_id is None:
        return record
    with suppress(BlobUnavailable):
        return replace(record, body=excerpt(await blobs.get(record.blob_id), "full"))
    return record
