"""A model server: OpenAI-compatible chat completions over HTTP that plays a script.

It is strict where lenient servers hide mistakes: a thread in which an assistant message with tool
calls is not followed at once by exactly one result for each of them is refused with 400, and a
refused request uses up nothing of the script.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from colony.testing.served import Served
from colony.testing.streamed import DONE, event_of, events_of, paced
from colony.testing.threads import problem

Answer = Mapping[str, JsonValue]
Script = Sequence[Answer] | Callable[["ModelRequest"], Answer]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request as it arrived, `content` its very bytes; header names are in lower case."""

    headers: Mapping[str, str]
    body: Mapping[str, JsonValue]
    content: bytes = b""

    @property
    def messages(self) -> list[dict[str, JsonValue]]:
        """The thread that was sent."""
        found = self.body.get("messages")
        return [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []


class ModelServer(Served):
    """A server on a free port, for as long as its `with` block lasts.

    The script is a list of answers, played in the order of the requests, or a function from a
    request to its answer. An answer has `text` or `tool_calls` (each `id`, `name`, `arguments`) or
    both, and optionally `finish_reason` and `usage` (null: none is sent); a request to `stream`
    gets it in chunks, and is told the usage if it asked. With `status` or `body` it is sent as it
    stands, with `headers`; `delay_s` holds any answer back.

    `chunks` are sent as the events of a stream, and `sse` as its text, to every request;
    `done: false` leaves out the end of `chunks`. After `cut_after` events of a stream the
    connection breaks, and `pause_s` goes by before each but the first.
    `requests` are those that were answered, `refused` those that were not.
    """

    def __init__(self, script: Script) -> None:
        super().__init__(Route("/v1/chat/completions", self._complete, methods=["POST"]))
        self._script = script
        self._played = 0
        self.requests: list[ModelRequest] = []
        self.refused: list[ModelRequest] = []

    @property
    def base_url(self) -> str:
        """What a client is told, `/v1` included."""
        return f"{self.origin}/v1"

    async def _complete(self, incoming: Request) -> Response:
        try:
            body = await incoming.json()
        except ValueError:
            return _refusal("the body is not JSON")
        if not isinstance(body, dict):
            return _refusal("the body is not an object")
        request = ModelRequest(dict(incoming.headers), body, await incoming.body())
        wrong = problem(body.get("messages"))
        if wrong is not None:
            self.refused.append(request)
            return _refusal(wrong)
        self.requests.append(request)
        answer = self._next(request)
        delay = answer.get("delay_s")
        if isinstance(delay, (int, float)):
            await asyncio.sleep(delay)
        return _response(answer, request, number=len(self.requests))

    def _next(self, request: ModelRequest) -> Answer:
        if callable(self._script):
            return self._script(request)
        if self._played == len(self._script):
            return _error(500, "the script is played to its end", "script_exhausted")
        self._played += 1
        return self._script[self._played - 1]


def _response(answer: Answer, request: ModelRequest, *, number: int) -> Response:
    if "status" in answer or "body" in answer:
        status, headers = answer.get("status", 200), answer.get("headers", {})
        assert isinstance(status, int)
        assert isinstance(headers, dict)
        body = answer.get("body")
        named = {name: str(value) for name, value in headers.items()}
        if isinstance(body, str):
            return Response(body, status, named)
        return JSONResponse(body, status, named)
    if "chunks" in answer or "sse" in answer:
        return _streaming(answer, _scripted_events(answer))
    completion = _completion(answer, request, number)
    if request.body.get("stream"):
        options = request.body.get("stream_options")
        counted = isinstance(options, dict) and bool(options.get("include_usage"))
        return _streaming(answer, events_of(completion, counted=counted))
    return JSONResponse(completion)


def _scripted_events(answer: Answer) -> list[str]:
    text, chunks = answer.get("sse"), answer.get("chunks")
    if isinstance(text, str):
        return [text]
    assert isinstance(chunks, list)
    return [*map(event_of, chunks), *([DONE] if answer.get("done", True) else [])]


def _streaming(answer: Answer, events: Sequence[str]) -> Response:
    pause_s, cut_after = answer.get("pause_s", 0.0), answer.get("cut_after")
    assert isinstance(pause_s, (int, float))
    assert cut_after is None or isinstance(cut_after, int)
    content = paced(events, pause_s=pause_s, cut_after=cut_after)
    return StreamingResponse(content, media_type="text/event-stream")


def _completion(answer: Answer, request: ModelRequest, number: int) -> dict[str, JsonValue]:
    calls = answer.get("tool_calls")
    message: dict[str, JsonValue] = {"role": "assistant", "content": answer.get("text")}
    if isinstance(calls, list):
        message["tool_calls"] = [_call(call) for call in calls]
    finish_reason = answer.get("finish_reason", "tool_calls" if calls else "stop")
    completion: dict[str, JsonValue] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
    }
    usage = answer.get("usage", {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
    if usage is not None:
        completion["usage"] = usage
    return completion


def _call(call: JsonValue) -> JsonValue:
    assert isinstance(call, dict)
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function: JsonValue = {"name": call["name"], "arguments": text}
    return {"id": call["id"], "type": "function", "function": function}


def _refusal(message: str) -> Response:
    answer = _error(400, message, "invalid_request_error")
    return JSONResponse(answer["body"], 400)


def _error(status: int, message: str, kind: str) -> Answer:
    error: JsonValue = {"message": message, "type": kind, "param": "messages", "code": None}
    return {"status": status, "body": {"error": error}}
