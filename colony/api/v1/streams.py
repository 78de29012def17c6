"""Streams: the events of a run or a session as server-sent events.

What is wrong before the first of them is a problem; afterwards it is the last event,
`error`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Final, Literal

from pydantic import JsonValue
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from colony.access.run_follower import Frame
from colony.api.events import COMMENT_S, HEADERS, SEND_TIMEOUT_S
from colony.api.problems import of_error
from colony.api.v1.ag_ui import AgUi
from colony.engine import Engine, Run
from colony.errors import ColonyError, ServerStopping, StaleRunControl

Form = Literal["colony", "ag-ui"]
Events = AsyncGenerator[ServerSentEvent]
Writer = Callable[[Frame], Iterable[ServerSentEvent]]

RETRY_MS: Final = 1000

# Runs that are being ended because whoever began them has gone.
_ENDING: Final[set["asyncio.Task[None]"]] = set()


async def follow_run(run: Run, form: Form) -> Response:
    """A run that was just begun, from its first event to its result."""
    frames = run.frames()
    write = _writer(form, run.session_id)
    return _response(_written(await anext(frames), frames, write, run.id, run))


async def follow_session(
    engine: Engine,
    session_id: str,
    *,
    owner: str | None,
    cursor: str | None,
    run_id: str | None,
    follow: bool,
    form: Form,
) -> Response:
    """The events of a session behind a cursor, or those of one run until it has ended."""
    session = await engine.session(session_id, owner=owner)
    ended = run_id is not None and not (session.live and session.run_id == run_id)
    frames = engine.feed.follow(
        session_id, cursor=cursor, run_id=run_id, follow=follow and not ended
    )
    first = await anext(frames)
    if ended and cursor is not None and first.phase == "mark":
        # A browser comes back until it is told that there is nothing more to come.
        await frames.aclose()
        return Response(status_code=204)
    return _response(_written(first, frames, _writer(form, session_id), run_id))


def _response(events: Events) -> Response:
    return EventSourceResponse(events, headers=HEADERS, ping=COMMENT_S, send_timeout=SEND_TIMEOUT_S)


async def _written(
    first: Frame,
    rest: AsyncGenerator[Frame],
    write: Writer,
    run_id: str | None,
    owned: Run | None = None,
) -> Events:
    done = False
    yield ServerSentEvent(comment="following", retry=RETRY_MS)
    try:
        async with aclosing(_chained(first, rest)) as frames:
            async for frame in frames:
                # Known before it is sent: whoever goes away with it has seen the end.
                done = run_id is not None and _ends(frame)
                for event in write(frame):
                    yield event
                if done:
                    return
    except ServerStopping as error:
        # No run ends because a process does.
        done = True
        yield _error(error)
    except ColonyError as error:
        yield _error(error)
    finally:
        if owned is not None and owned.on_disconnect == "cancel" and not done:
            ending = asyncio.create_task(_end(owned))
            _ENDING.add(ending)
            ending.add_done_callback(_ENDING.discard)


async def _chained(first: Frame, rest: AsyncGenerator[Frame]) -> AsyncGenerator[Frame]:
    async with aclosing(rest):
        yield first
        async for frame in rest:
            yield frame


def _ends(frame: Frame) -> bool:
    return frame.event is not None and frame.event.kind == "result"


async def _end(run: Run) -> None:
    with suppress(StaleRunControl):
        await run.cancel()


def _writer(form: Form, session_id: str) -> Writer:
    return _as_it_is if form == "colony" else AgUi(session_id)


def _error(error: ColonyError) -> ServerSentEvent:
    problem = of_error(error)
    told: dict[str, JsonValue] = {"code": problem.code, "detail": problem.detail}
    return ServerSentEvent(event="error", data=json.dumps(told))


def _as_it_is(frame: Frame) -> Iterable[ServerSentEvent]:
    """A frame as an event of its own; what is not of a run has a name."""
    if frame.event is None:
        return [ServerSentEvent(event="live" if frame.phase == "mark" else "gap", data="{}")]
    return [ServerSentEvent(id=frame.cursor, data=json.dumps(frame.event.to_json()))]
