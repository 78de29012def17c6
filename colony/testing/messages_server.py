"""A messages server: Anthropic's Messages API over HTTP that plays a script.

It is strict where the protocol is: roles alternate, the calls of a message are answered by the
first blocks of the next one, no text block is empty, and `max_tokens` is there. What it refuses
uses up nothing of the script.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from colony.testing.served import Served
from colony.testing.threads import block_problem

Answer = Mapping[str, JsonValue]
Block = dict[str, JsonValue]
Script = Sequence[Answer] | Callable[["MessagesRequest"], Answer]

USAGE: Mapping[str, JsonValue] = {"input_tokens": 10, "output_tokens": 5}
PIECE = 5


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """One request as it arrived, `content` its very bytes; header names are in lower case."""

    headers: Mapping[str, str]
    body: Mapping[str, JsonValue]
    content: bytes = b""

    @property
    def messages(self) -> list[dict[str, JsonValue]]:
        """The messages that were sent."""
        found = self.body.get("messages")
        return [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []


class MessagesServer(Served):
    """A server on a free port, for as long as its `with` block lasts.

    The script is a list of answers, played in the order of the requests, or a function from a
    request to its answer. An answer has `content`, a list of blocks or a text, and optionally
    `stop_reason` and `usage`; it is streamed where the request asks for that. A streamed one is cut
    after `events` of its events, or ends with `error`. With `status` or `body` it is sent as it
    stands, with `headers`; `delay_s` holds any answer back. `requests` are those that were
    answered, `refused` those that were not.
    """

    def __init__(self, script: Script) -> None:
        super().__init__(Route("/v1/messages", self._complete, methods=["POST"]))
        self._script = script
        self._played = 0
        self.requests: list[MessagesRequest] = []
        self.refused: list[MessagesRequest] = []

    @property
    def base_url(self) -> str:
        """What a client is told."""
        return self.origin

    async def _complete(self, incoming: Request) -> Response:
        try:
            body = await incoming.json()
        except ValueError:
            return _refusal("the body is not JSON")
        if not isinstance(body, dict):
            return _refusal("the body is not an object")
        request = MessagesRequest(dict(incoming.headers), body, await incoming.body())
        wrong = _wrong(body)
        if wrong is not None:
            self.refused.append(request)
            return _refusal(wrong)
        self.requests.append(request)
        answer = self._next(request)
        delay = answer.get("delay_s")
        if isinstance(delay, (int, float)):
            await asyncio.sleep(delay)
        return _response(answer, request, number=len(self.requests))

    def _next(self, request: MessagesRequest) -> Answer:
        if callable(self._script):
            return self._script(request)
        if self._played == len(self._script):
            return {"status": 500, "body": error_body("api_error", "the script is at its end")}
        self._played += 1
        return self._script[self._played - 1]


def error_body(kind: str, message: str) -> Block:
    """An error as the protocol writes it."""
    return {"type": "error", "error": {"type": kind, "message": message}}


def events(message: Block) -> Iterator[Block]:
    """The events by which a message is streamed."""
    usage = message["usage"]
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    yield {"type": "ping"}
    content = message["content"]
    assert isinstance(content, list)
    for index, block in enumerate(content):
        assert isinstance(block, dict)
        start, deltas = _pieces(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    closing: Block = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    counted = usage.get("output_tokens") if isinstance(usage, dict) else None
    yield {"type": "message_delta", "delta": closing, "usage": {"output_tokens": counted}}
    yield {"type": "message_stop"}


def _wrong(body: Block) -> str | None:
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        return "max_tokens: Field required"
    if not isinstance(body.get("model"), str):
        return "model: Field required"
    tools = body.get("tools", [])
    for number, tool in enumerate(tools if isinstance(tools, list) else [tools]):
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict) or schema.get("type") != "object":
            return f"tools.{number}.input_schema: Field required"
    return block_problem(body.get("messages"))


def _response(answer: Answer, request: MessagesRequest, *, number: int) -> Response:
    if "status" in answer or "body" in answer:
        return _as_it_stands(answer)
    message = _message(answer, request, number)
    if not request.body.get("stream"):
        return JSONResponse(message)
    sent = [*events(message)]
    limit = answer.get("events")
    sent = sent[: limit if isinstance(limit, int) else len(sent)]
    if "error" in answer:
        sent.append({"type": "error", "error": answer["error"]})
    return StreamingResponse(_streamed(sent), media_type="text/event-stream; charset=utf-8")


def _as_it_stands(answer: Answer) -> Response:
    status, headers = answer.get("status", 200), answer.get("headers", {})
    assert isinstance(status, int)
    assert isinstance(headers, dict)
    named = {name: str(value) for name, value in headers.items()}
    body = answer.get("body")
    if isinstance(body, str):
        return Response(body, status, named)
    return JSONResponse(body, status, named)


def _message(answer: Answer, request: MessagesRequest, number: int) -> Block:
    content = answer.get("content", [])
    blocks: list[JsonValue] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else [*_list(content)]
    )
    calls = any(isinstance(block, dict) and block["type"] == "tool_use" for block in blocks)
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "content": blocks,
        "stop_reason": answer.get("stop_reason", "tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": answer.get("usage", dict(USAGE)),
    }


def _pieces(block: Block) -> tuple[Block, list[Block]]:
    """How a block begins, and the deltas by which it grows."""
    match block["type"]:
        case "text":
            pieces = _cut(str(block["text"]))
            return {**block, "text": ""}, [{"type": "text_delta", "text": p} for p in pieces]
        case "tool_use":
            # A text is sent as it stands, be it JSON or not.
            given = block["input"]
            written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            pieces = ["", *_cut(written)]
            deltas: list[Block] = [
                {"type": "input_json_delta", "partial_json": piece} for piece in pieces
            ]
            return {**block, "input": {}}, deltas
        case "thinking":
            thought: list[Block] = [
                {"type": "thinking_delta", "thinking": p} for p in _cut(str(block["thinking"]))
            ]
            signed: Block = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*thought, signed]
        case _:
            return block, []


async def _streamed(sent: Sequence[Block]) -> AsyncIterator[str]:
    for event in sent:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
        # Each event is a packet of its own.
        await asyncio.sleep(0)


def _cut(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def _list(value: JsonValue) -> list[JsonValue]:
    assert isinstance(value, list)
    return value


def _refusal(message: str) -> Response:
    return JSONResponse(error_body("invalid_request_error", message), 400)
