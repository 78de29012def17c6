"""Runs over HTTP: begun, followed, made again, and told things on their way."""

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from colony.access import promptly
from colony.api.auth import principal_of
from colony.api.endpoints import EVENT_STREAM
from colony.api.requests import NoQuery, Query, idempotency_key
from colony.api.v1.asking import body_of, engine_of, owner_of, session_id_of
from colony.api.v1.sessions import answer
from colony.api.v1.shapes import Begun, Cancel, Prompt, ResolveAsk, Resolved, Retry, Steer
from colony.api.v1.streams import Form, follow_run, follow_session
from colony.engine import Run
from colony.errors import InvalidArgument


class StreamQuery(Query):
    """How a run is told, where it is streamed."""

    format: Form = "colony"


class EventsQuery(StreamQuery):
    """Which events. `cursor` is the id of the last one that was seen; the header
    `Last-Event-ID`, which a browser sends by itself when it comes back, is newer."""

    cursor: str | None = None
    run_id: str | None = None
    follow: Literal["true", "false"] = "true"


async def prompt(request: Request) -> Response:
    """Begin a run with what a person says: its id, or a stream of its events."""
    query = StreamQuery.of(request)
    wanted = await body_of(request, Prompt)
    streamed = _wants_stream(request, wanted.on_disconnect)
    run = await promptly(
        engine_of(request).run(
            session_id_of(request),
            wanted.said,
            owner=owner_of(request),
            limits=None if wanted.limits is None else wanted.limits.model_dump(exclude_unset=True),
            idempotency_key=idempotency_key(request),
            on_disconnect=wanted.on_disconnect,
        )
    )
    return await _told(run, query.format, streamed=streamed)


async def retry(request: Request) -> Response:
    """Make the step again that a session has failed in: its id, or a stream of its events."""
    query = StreamQuery.of(request)
    wanted = await body_of(request, Retry)
    streamed = _wants_stream(request, wanted.on_disconnect)
    run = await promptly(
        engine_of(request).retry(
            session_id_of(request),
            owner=owner_of(request),
            idempotency_key=idempotency_key(request),
            on_disconnect=wanted.on_disconnect,
        )
    )
    return await _told(run, query.format, streamed=streamed)


async def get_events(request: Request) -> Response:
    """The events of a session behind a cursor, then a mark, then each as it happens.

    Of one run it tells until that has ended; 204 where its end was seen before.
    """
    query = EventsQuery.of(request)
    return await follow_session(
        engine_of(request),
        session_id_of(request),
        owner=owner_of(request),
        cursor=request.headers.get("last-event-id", query.cursor),
        run_id=query.run_id,
        follow=query.follow == "true",
        form=query.format,
    )


async def resolve_ask(request: Request) -> Response:
    """Answer an ask. The first answer counts; a repeat under its key is told the same."""
    NoQuery.of(request)
    wanted = await body_of(request, ResolveAsk)
    decision = await promptly(
        engine_of(request).resolve(
            session_id_of(request),
            wanted.run_id,
            wanted.ask_id,
            wanted.verdict,
            wanted.reason,
            args=wanted.args,
            idempotency_key=idempotency_key(request),
            actor=principal_of(request).name,
            owner=owner_of(request),
        )
    )
    return answer(
        Resolved(
            run_id=wanted.run_id,
            ask_id=wanted.ask_id,
            verdict=decision.verdict,
            learned=decision.learned,
        )
    )


async def cancel(request: Request) -> Response:
    """End a run as cancelled; a repeat changes nothing."""
    NoQuery.of(request)
    wanted = await body_of(request, Cancel)
    session_id = session_id_of(request)
    await promptly(engine_of(request).cancel(session_id, wanted.run_id, owner=owner_of(request)))
    return answer(Begun(session_id=session_id, run_id=wanted.run_id), 202)


async def steer(request: Request) -> Response:
    """Say something to the run under way, which takes it up at its next boundary."""
    NoQuery.of(request)
    wanted = await body_of(request, Steer)
    session_id = session_id_of(request)
    run_id = await promptly(
        engine_of(request).steer(
            session_id,
            wanted.text,
            run_id=wanted.run_id,
            owner=owner_of(request),
            idempotency_key=idempotency_key(request),
        )
    )
    return answer(Begun(session_id=session_id, run_id=run_id), 202)


def _wants_stream(request: Request, on_disconnect: str) -> bool:
    streamed = EVENT_STREAM in request.headers.get("accept", "")
    if on_disconnect == "cancel" and not streamed:
        raise InvalidArgument(detail=f"on_disconnect is of a stream: accept {EVENT_STREAM}")
    return streamed


async def _told(run: Run, form: Form, *, streamed: bool) -> Response:
    if streamed:
        return await follow_run(run, form)
    return answer(Begun(session_id=run.session_id, run_id=run.id), 202)
