"""Streamed: a chat completion as the events of a stream, whole or broken off."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from pydantic import JsonValue

DONE = "data: [DONE]\n\n"

_WORD = re.compile(r"\S+\s*|\s+")

Fields = Mapping[str, JsonValue]


class BrokenOff(Exception):
    """The server drops the connection here."""


def events_of(completion: Fields, *, counted: bool) -> list[str]:
    """The events that say what a `completion` says; with its usage at the end where `counted`."""
    return [*map(event_of, _chunks(completion, counted=counted)), DONE]


def event_of(chunk: JsonValue) -> str:
    """The event that one chunk is."""
    return f"data: {json.dumps(chunk)}\n\n"


async def paced(
    events: Sequence[str], *, pause_s: float, cut_after: int | None
) -> AsyncIterator[str]:
    """The events, each but the first after a pause; the connection breaks after `cut_after`."""
    for number, event in enumerate(events):
        if number == cut_after:
            raise BrokenOff
        if number and pause_s:
            await asyncio.sleep(pause_s)
        yield event
    if cut_after is not None:
        raise BrokenOff


def _chunks(completion: Fields, *, counted: bool) -> Iterator[JsonValue]:
    choice = _object(_list(completion["choices"])[0])
    message = _object(choice["message"])
    head = {name: completion[name] for name in ("id", "created", "model")}
    beginning: dict[str, JsonValue] = {"role": "assistant", "content": ""}
    for delta in (beginning, *_deltas(message)):
        yield _chunk(head, {"index": 0, "delta": delta, "finish_reason": None})
    yield _chunk(head, {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    if counted and completion.get("usage") is not None:
        yield {**_chunk(head), "usage": completion["usage"]}


def _chunk(head: Fields, *choices: JsonValue) -> dict[str, JsonValue]:
    return {**head, "object": "chat.completion.chunk", "choices": list(choices)}


def _deltas(message: Fields) -> Iterator[dict[str, JsonValue]]:
    content = message.get("content")
    for word in _WORD.findall(content) if isinstance(content, str) else ():
        yield {"content": word}
    for index, call in enumerate(_list(message.get("tool_calls"))):
        for fragment in _fragments(_object(call)):
            yield {"tool_calls": [{"index": index, **fragment}]}


def _fragments(call: Fields) -> Iterator[dict[str, JsonValue]]:
    function = _object(call["function"])
    arguments = str(function["arguments"])
    half = len(arguments) // 2
    yield {**call, "function": {"name": function["name"], "arguments": ""}}
    for part in (arguments[:half], arguments[half:]):
        if part:
            yield {"function": {"arguments": part}}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _object(value: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(value, dict)
    return value
