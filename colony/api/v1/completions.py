"""Chat completions: an agent to whoever knows how to ask a model of OpenAI.

A request has the whole conversation, so each is held in a session of its own, in which a call that
would ask is refused: nobody is there to be asked. One that names a session in its `metadata` goes
on with that one, with the last of its messages.
"""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import promptly
from colony.access.run_feed import STOPPING
from colony.agent.events import Event
from colony.agent.history import HistoryRow
from colony.api.auth import principal_of
from colony.api.events import COMMENT_S, HEADERS, SEND_TIMEOUT_S
from colony.api.problems import Problem, of_error
from colony.api.requests import NoQuery, idempotency_key
from colony.api.v1.asking import body_of, engine_of, owner_of
from colony.body import Entry
from colony.engine import Engine, Run
from colony.errors import AgentNotFound, ColonyError, InvalidArgument, ServerStopping

# Of these stops a client is told otherwise than that the answer is whole.
FINISHED: Final = {
    "refusal": "content_filter",
    "length": "length",
    "max_turns": "length",
    "max_tool_calls": "length",
    "max_consecutive_failures": "length",
    "budget": "length",
}
PARAGRAPH: Final = "\n\n"

_SPEAKERS: Final = {"user": "user", "assistant": "assistant", "system": "note", "developer": "note"}


class TextPart(BaseModel):
    """A part of a message. Agents read text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message of the conversation."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """All that it says."""
        if isinstance(self.content, str):
            return self.content
        return PARAGRAPH.join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    include_usage: bool = False


class ChatRequest(BaseModel):
    """What a client of OpenAI sends. How a model samples is set in the agent, and not taken from
    here; what cannot be done, such as tools of the client's own, is refused."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    tools: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    functions: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    metadata: dict[str, str] | None = None

    @property
    def session_id(self) -> str | None:
        """The session that is gone on with."""
        return (self.metadata or {}).get("session_id")


async def complete_chat(request: Request) -> Response:
    """Have an agent answer a conversation, whole or as a stream of chunks."""
    try:
        NoQuery.of(request)
        wanted = await body_of(request, ChatRequest)
        run = await promptly(_begun(request, wanted))
        if wanted.stream:
            return EventSourceResponse(
                _chunks(run, wanted), headers=HEADERS, ping=COMMENT_S, send_timeout=SEND_TIMEOUT_S
            )
        return JSONResponse(await _whole(run, wanted.model))
    except ColonyError as error:
        return _refused(of_error(error))
    except Problem as problem:
        return _refused(problem)


async def get_models(request: Request) -> Response:
    """The agents, as models."""
    NoQuery.of(request)
    names = await promptly(engine_of(request).agents())
    return JSONResponse({"object": "list", "data": [_model(name) for name in names]})


async def get_model(request: Request) -> Response:
    """An agent, as a model."""
    NoQuery.of(request)
    name = request.path_params["model"]
    if name not in await promptly(engine_of(request).agents()):
        return _refused(of_error(AgentNotFound(agent=name)))
    return JSONResponse(_model(name))


async def _begun(request: Request, wanted: ChatRequest) -> Run:
    engine, last = engine_of(request), wanted.messages[-1]
    if last.role != "user":
        raise InvalidArgument(detail="the last message is of a user")
    session_id = wanted.session_id or await _session(engine, request, wanted)
    return await engine.run(
        session_id,
        last.text,
        owner=owner_of(request),
        # A session of its own has no earlier run to be told of.
        idempotency_key=idempotency_key(request) if wanted.session_id else None,
    )


async def _session(engine: Engine, request: Request, wanted: ChatRequest) -> str:
    made = await engine.create_session(
        wanted.model,
        owner=principal_of(request).name,
        ask_policy="deny",
        history=_history(wanted.messages[:-1]),
    )
    return made.id


def _history(messages: Sequence[ChatMessage]) -> list[HistoryRow]:
    rows: list[HistoryRow] = []
    for message in messages:
        kind: Any = _SPEAKERS[message.role]
        origin: Any = "assistant" if kind == "assistant" else "user"
        entries = (Entry.say(origin, message.text),)
        rows.append(HistoryRow(kind=kind, run_id="", turn=-1, entries=entries))
    return rows


async def _whole(run: Run, model: str) -> dict[str, JsonValue]:
    said: list[str] = []
    async with aclosing(_told(run)) as events:
        async for event, text in events:
            said.append(text)
            if event.kind == "result":
                told: Any = event.payload
                if told["state"] != "completed":
                    raise Problem(502, "run_failed", _why(event))
                choice: JsonValue = {
                    "index": 0,
                    "message": {"role": "assistant", "content": "".join(said)},
                    "finish_reason": FINISHED.get(told["stop"], "stop"),
                    "logprobs": None,
                }
                named = _named(run, model, "chat.completion")
                return {**named, "choices": [choice], "usage": _usage(told["usage"])}
    raise ServerStopping(detail=STOPPING)


async def _chunks(run: Run, wanted: ChatRequest) -> AsyncIterator[ServerSentEvent]:
    named = _named(run, wanted.model, "chat.completion.chunk")
    yield _chunk(named, {"role": "assistant", "content": ""})
    try:
        async with aclosing(_told(run)) as events:
            async for event, text in events:
                if event.kind == "reasoning.delta":
                    yield _chunk(named, {"reasoning_content": event.payload["text"]})
                elif text:
                    yield _chunk(named, {"content": text})
                elif event.kind == "result":
                    for chunk in _last(named, event, wanted):
                        yield chunk
    except ColonyError as error:
        yield _broken(error.code, str(error))
    yield ServerSentEvent(data="[DONE]")


def _last(named: dict[str, JsonValue], event: Event, wanted: ChatRequest) -> list[ServerSentEvent]:
    told: Any = event.payload
    if told["state"] != "completed":
        return [_broken("run_failed", _why(event))]
    chunks = [_chunk(named, {}, finish=FINISHED.get(told["stop"], "stop"))]
    if wanted.stream_options and wanted.stream_options.include_usage:
        usage: dict[str, JsonValue] = {**named, "choices": [], "usage": _usage(told["usage"])}
        chunks.append(ServerSentEvent(data=json.dumps(usage)))
    return chunks


async def _told(run: Run) -> AsyncGenerator[tuple[Event, str]]:
    """The events that a client is told of, each with the text it adds to the answer: what is said
    in different turns is in different paragraphs."""
    spoken = -1
    async with aclosing(run.events()) as events:
        async for event in events:
            text = ""
            if event.kind == "message.delta":
                text = str(event.payload["text"])
                if text and spoken not in (-1, event.turn):
                    text = PARAGRAPH + text
                spoken = event.turn if text else spoken
            if text or event.kind in ("reasoning.delta", "result"):
                yield event, text


def _why(event: Event) -> str:
    told: Any = event.payload
    return f"the run was {told['state']}: {told['error'] or told['stop']}"


def _named(run: Run, model: str, kind: str) -> dict[str, JsonValue]:
    metadata: JsonValue = {"session_id": run.session_id, "run_id": run.id}
    return {
        "id": f"chatcmpl-{run.id}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "metadata": metadata,
    }


def _chunk(
    named: dict[str, JsonValue], delta: JsonValue, *, finish: str | None = None
) -> ServerSentEvent:
    choice: JsonValue = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return ServerSentEvent(data=json.dumps({**named, "choices": [choice]}))


def _broken(code: str, why: str) -> ServerSentEvent:
    return ServerSentEvent(data=json.dumps({"error": _error(code, why)}))


def _refused(problem: Problem) -> Response:
    """A problem that a client of OpenAI can read as well."""
    problem.more = {**problem.more, "error": _error(problem.code, problem.detail)}
    return problem.response()


def _error(code: str, why: str) -> JsonValue:
    return {"message": why, "type": code, "code": code, "param": None}


def _usage(told: Any) -> JsonValue:
    sent, given = told["input_tokens"], told["output_tokens"]
    return {"prompt_tokens": sent, "completion_tokens": given, "total_tokens": sent + given}


def _model(name: str) -> JsonValue:
    return {"id": name, "object": "model", "created": 0, "owned_by": "colony"}
