"""Sessions over HTTP: made, found, read, copied, folded and forgotten."""

from importlib.metadata import version
from typing import Annotated, Final

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import promptly
from colony.api.auth import principal_of
from colony.api.requests import NoQuery, Query
from colony.api.v1.asking import body_of, engine_of, owner_of, session_id_of
from colony.api.v1.shapes import (
    AskView,
    Compacted,
    Counters,
    Deleted,
    Fork,
    Info,
    NewSession,
    Nothing,
    SessionPageView,
    SessionView,
    Transcript,
    TranscriptRow,
)

FEATURES: Final = (
    "ag_ui",
    "compact",
    "edited_arguments",
    "fork",
    "idempotency_keys",
    "openai_chat_completions",
    "resumable_events",
    "retry",
    "steer",
)


class SessionsQuery(Query):
    """Which page. `cursor` comes from the page before."""

    cursor: str = ""
    limit: Annotated[int, Field(ge=1, le=200)] = 50


async def make_session(request: Request) -> Response:
    """Make a session of an agent, idle."""
    NoQuery.of(request)
    wanted = await body_of(request, NewSession)
    limits = None if wanted.limits is None else wanted.limits.model_dump(exclude_unset=True)
    made = await promptly(
        engine_of(request).create_session(
            wanted.agent,
            owner=principal_of(request).name,
            model=wanted.model,
            limits=limits,
            rules={effect: found for effect, found in (wanted.rules or {}).items()},
            ask_policy=wanted.ask_policy,
        )
    )
    return answer(SessionView(**dict(made)), 201)


async def get_sessions(request: Request) -> Response:
    """The sessions of whoever asks, the one that changed last first."""
    query = SessionsQuery.of(request)
    page = await promptly(
        engine_of(request).sessions(owner=owner_of(request), cursor=query.cursor, limit=query.limit)
    )
    return answer(SessionPageView(sessions=page.sessions, cursor=page.cursor))


async def get_session(request: Request) -> Response:
    """A session, with what it waits for and what its newest run has done."""
    NoQuery.of(request)
    engine, session_id = engine_of(request), session_id_of(request)
    session = await promptly(engine.session(session_id, owner=owner_of(request)))
    asks = await promptly(engine.asks(session_id)) if session.pending else []
    record = await promptly(engine.record(session.run_id)) if session.run_id else None
    return answer(
        SessionView(
            **dict(session),
            asks=[AskView.of(ask) for ask in asks],
            counters=Counters() if record is None else Counters.of(record),
        )
    )


async def get_transcript(request: Request) -> Response:
    """What was said in a session, from its beginning."""
    NoQuery.of(request)
    rows = await promptly(
        engine_of(request).transcript(session_id_of(request), owner=owner_of(request))
    )
    return answer(Transcript(messages=[TranscriptRow.of(row) for row in rows]))


async def compact_session(request: Request) -> Response:
    """Fold the oldest part of a session that no run drives."""
    NoQuery.of(request)
    await body_of(request, Nothing)
    folded = await engine_of(request).compact(session_id_of(request), owner=owner_of(request))
    return answer(Compacted(compacted=folded))


async def fork_session(request: Request) -> Response:
    """Make a session that begins with what was said in another up to a turn."""
    NoQuery.of(request)
    wanted = await body_of(request, Fork)
    made = await promptly(
        engine_of(request).fork(
            session_id_of(request), run_id=wanted.run_id, turn=wanted.turn, owner=owner_of(request)
        )
    )
    return answer(SessionView(**dict(made)), 201)


async def delete_session(request: Request) -> Response:
    """Forget a session; a run that is under way is cancelled first."""
    NoQuery.of(request)
    session_id = session_id_of(request)
    await promptly(engine_of(request).delete(session_id, owner=owner_of(request)))
    return answer(Deleted(id=session_id))


async def get_info(request: Request) -> Response:
    """Which version of colony answers, and what it knows how to do."""
    NoQuery.of(request)
    return answer(Info(version=version("colony-broker"), features=[*FEATURES]))


def answer(told: BaseModel, status: int = 200) -> Response:
    """A model as a response."""
    return JSONResponse(told.model_dump(mode="json"), status)
