"""The application: every endpoint of the HTTP interface, over one colony."""

from functools import cache
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.api import events, health, letters, messages, problems, reads
from colony.api.auth import Auth
from colony.api.endpoints import EVENT_STREAM, Answer, Endpoint
from colony.api.openapi import document
from colony.api.requests import NoQuery
from colony.api.spells import Spells
from colony.api.v1 import completions, runs, sessions, shapes
from colony.engine import Engine
from colony.errors import ColonyError
from colony.principals import Principals

_STREAM: Final = Answer(media_type=EVENT_STREAM)
_JSON: Final = Answer()
_BYTES: Final = Answer(media_type="application/octet-stream")
_LETTER: Final = "/colony/dead_letters/{id}"
_SESSION: Final = "/v1/sessions/{session_id}"
_BEGUN: Final = {202: (Answer(shapes.Begun),), 200: (_STREAM,)}
_ONCE: Final = ("Idempotency-Key",)


async def get_openapi(request: Request) -> Response:
    """This document."""
    NoQuery.of(request)
    return JSONResponse(_document())


@cache
def _document() -> dict[str, Any]:
    return document(ENDPOINTS)


ENDPOINTS: Final = (
    Endpoint("POST", "/messages", messages.post_message, messages.Waiting, messages.Message,
             {202: (_JSON,), 200: (_JSON,)}, _ONCE),
    Endpoint("GET", "/colony/registry", reads.get_registry, reads.RegistryQuery),
    Endpoint("GET", "/colony/graph", reads.get_graph, reads.GraphQuery),
    Endpoint("GET", "/colony/status", reads.get_status),
    Endpoint("GET", "/colony/trace", reads.get_trace, reads.TraceQuery),
    Endpoint("GET", "/colony/traces", reads.get_traces, reads.TracesQuery),
    Endpoint("GET", "/colony/messages", reads.get_messages, reads.MessagesQuery),
    Endpoint("GET", "/colony/rounds", reads.get_rounds),
    Endpoint("GET", "/colony/rounds/{turn_id:path}", reads.get_rounds, name="get_question_rounds"),
    Endpoint("GET", "/colony/threads/{question:path}/request", reads.get_request,
             reads.RequestQuery),
    Endpoint("GET", "/colony/threads/{question:path}", reads.get_thread),
    Endpoint("GET", "/colony/documents/{handle}", reads.get_document, reads.DocumentQuery,
             answers={200: (_BYTES,)}),
    Endpoint("GET", "/colony/dead_letters", letters.get_letters, letters.LettersQuery),
    Endpoint("DELETE", "/colony/dead_letters", letters.drop_letters, letters.BulkQuery),
    Endpoint("POST", "/colony/dead_letters/replay", letters.replay_letters, letters.BulkQuery,
             answers={200: (_JSON,), 202: (_JSON,)}),
    Endpoint("GET", _LETTER, letters.get_letter),
    Endpoint("DELETE", _LETTER, letters.drop_letter),
    Endpoint("POST", f"{_LETTER}/replay", letters.replay_letter, answers={202: (_JSON,)}),
    Endpoint("GET", "/colony/events", events.get_events, events.EventsQuery,
             answers={200: (_STREAM,)}, headers=("Last-Event-ID",), name="get_hops"),
    Endpoint("POST", "/v1/sessions", sessions.make_session, body=shapes.NewSession,
             answers={201: (Answer(shapes.SessionView),)}),
    Endpoint("GET", "/v1/sessions", sessions.get_sessions, sessions.SessionsQuery,
             answers={200: (Answer(shapes.SessionPageView),)}),
    Endpoint("GET", _SESSION, sessions.get_session, answers={200: (Answer(shapes.SessionView),)}),
    Endpoint("DELETE", _SESSION, sessions.delete_session, answers={200: (Answer(shapes.Deleted),)}),
    Endpoint("GET", f"{_SESSION}/transcript", sessions.get_transcript,
             answers={200: (Answer(shapes.Transcript),)}),
    Endpoint("POST", f"{_SESSION}/compact", sessions.compact_session, body=shapes.Nothing,
             answers={200: (Answer(shapes.Compacted),)}),
    Endpoint("POST", f"{_SESSION}/fork", sessions.fork_session, body=shapes.Fork,
             answers={201: (Answer(shapes.SessionView),)}),
    Endpoint("POST", f"{_SESSION}/prompt", runs.prompt, runs.StreamQuery, shapes.Prompt, _BEGUN,
             _ONCE),
    Endpoint("POST", f"{_SESSION}/retry", runs.retry, runs.StreamQuery, shapes.Retry, _BEGUN,
             _ONCE),
    Endpoint("GET", f"{_SESSION}/events", runs.get_events, runs.EventsQuery,
             answers={200: (_STREAM,), 204: ()}, headers=("Last-Event-ID",)),
    Endpoint("POST", f"{_SESSION}/controls/resolve-ask", runs.resolve_ask, body=shapes.ResolveAsk,
             answers={200: (Answer(shapes.Resolved),)}, headers=_ONCE),
    Endpoint("POST", f"{_SESSION}/controls/cancel", runs.cancel, body=shapes.Cancel,
             answers={202: (Answer(shapes.Begun),)}),
    Endpoint("POST", f"{_SESSION}/controls/steer", runs.steer, body=shapes.Steer,
             answers={202: (Answer(shapes.Begun),)}, headers=_ONCE),
    Endpoint("POST", "/v1/chat/completions", completions.complete_chat,
             body=completions.ChatRequest, answers={200: (_JSON, _STREAM)}, headers=_ONCE),
    Endpoint("GET", "/v1/models", completions.get_models),
    Endpoint("GET", "/v1/models/{model:path}", completions.get_model),
    Endpoint("GET", "/v1/info", sessions.get_info, answers={200: (Answer(shapes.Info),)}),
    Endpoint("GET", "/openapi.json", get_openapi),
    Endpoint("GET", "/healthz", health.get_health),
    Endpoint("GET", "/health", health.get_health, name="get_health_too"),
    Endpoint("GET", "/readyz", health.get_ready),
)  # fmt: skip


def make_app(engine: Engine, *, principals: Principals) -> Starlette:
    """The application. Where there are tokens, every endpoint but those of health asks for one."""
    app = Starlette(
        routes=[endpoint.route for endpoint in ENDPOINTS],
        middleware=[Middleware(Auth, principals=principals)],
        exception_handlers={
            problems.Problem: problems.on_problem,
            ColonyError: problems.on_colony_error,
            HTTPException: problems.on_http_exception,
            Exception: problems.on_anything_else,
        },
    )
    app.router.redirect_slashes = False
    app.state.access = engine.access
    app.state.engine = engine
    app.state.spells = Spells()
    return app
