"""Message blocks: a thread as Anthropic's Messages API takes it.

Roles alternate there, and one message holds everything that one side says: the model's prose and
calls are one message, and the results of all its calls begin the next one.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Literal

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import digest
from workers.llm.provider import Failure, Request, Tool
from workers.llm.threads.functions import read_function, sendable_name
from workers.llm.threads.thread import CALL, TURN, no_function, not_sendable, unaskable, vendor_of

ANTHROPIC = "anthropic"
# Under this name what the provider wants back is kept: blocks that are neither prose nor a call.
BLOCKS = "blocks"

# What is sent where nobody says how long an answer may be, because the protocol wants to know.
MAX_TOKENS = 4096
CUT_AWAY = "[The beginning of this conversation is not shown.]"

Block = dict[str, JsonValue]

_ID = re.compile(r"[A-Za-z0-9_-]+")
MAX_NAME = 128
# Blocks that are made of the entries, and are never among those that were kept.
_TOLD = frozenset({"text", "tool_use", "tool_result"})


def to_body(request: Request, streaming: Mapping[str, JsonValue]) -> dict[str, JsonValue] | Failure:
    """The body of the request with what makes it a stream; a null in `provider_extra` takes a key
    out of it."""
    messages = to_alternating(request.entries)
    if isinstance(messages, Failure):
        return messages
    generation = request.generation
    thinking = generation.provider_extra.get("thinking", generation.reasoning)
    effort = generation.reasoning_effort
    body: dict[str, JsonValue] = {
        "model": generation.model,
        "max_tokens": generation.max_tokens or MAX_TOKENS,
        "system": _system(request),
        "messages": [*messages],
        "tools": [_tool(tool) for tool in request.tools] or None,
        # A model that thinks is refused with any temperature but its own.
        "temperature": None if thinking else generation.temperature,
        "thinking": thinking,
        "output_config": {"effort": effort} if effort else None,
        **streaming,
        **generation.provider_extra,
    }
    return {name: value for name, value in body.items() if value is not None}


def to_alternating(entries: Sequence[Entry]) -> list[Block] | Failure:
    """The messages that a thread is in which every call is answered at once.

    What says nothing is left out. System texts at the head are not among them, later ones are said
    by the user.
    """
    said: list[_Said] = []
    for entry in _called_once(entries[len(_head(entries)) :]):
        found = _said(entry)
        if isinstance(found, Failure):
            return found
        said += found
    if not said:
        return unaskable("invalid_input", "the thread says nothing")
    if said[0].role == "assistant":
        said.insert(0, _Said("user", _PROSE, {"type": "text", "text": CUT_AWAY}))
    return [
        {"role": role, "content": [one.block for one in sorted(turn, key=attrgetter("rank"))]}
        for role, turn in groupby(said, key=attrgetter("role"))
    ]


@dataclass(frozen=True, slots=True)
class _Said:
    """A block, who says it, and which blocks of the same message it stands before."""

    role: Literal["user", "assistant"]
    rank: int
    block: Block


# Entries have the prose of a turn behind its calls; models say it before them, and think first.
_THOUGHT, _PROSE, _CALL = range(3)


def _said(entry: Entry) -> list[_Said] | Failure:
    match entry.type:
        case "text":
            role: Literal["user", "assistant"] = (
                "assistant" if entry.origin == "assistant" else "user"
            )
            thoughts = _kept(entry, TURN) if role == "assistant" else []
            kept = [_Said(role, _THOUGHT, block) for block in thoughts]
            text = entry.text or ""
            return [*kept, _Said(role, _PROSE, _text(text))] if text.strip() else kept
        case "tool_call":
            return _said_call(entry)
        case "tool_result":
            result: Block = {"type": "tool_result", "tool_use_id": entry.id}
            if entry.text and entry.text.strip():
                result["content"] = entry.text
            if entry.is_error:
                result["is_error"] = True
            return [_Said("user", _THOUGHT, result)]
        case _:
            return not_sendable(entry)


def _said_call(entry: Entry) -> list[_Said] | Failure:
    function = read_function(entry)
    if function is None:
        return no_function(entry)
    call: Block = {
        "type": "tool_use",
        "id": entry.id,
        "name": sendable_name(function.name, limit=MAX_NAME),
        "input": json.loads(function.arguments),
    }
    return [
        *(_Said("assistant", _THOUGHT, block) for block in _kept(entry, TURN)),
        *(_Said("assistant", _CALL, block) for block in _kept(entry, CALL)),
        _Said("assistant", _CALL, call),
    ]


def _kept(entry: Entry, part: str) -> list[Block]:
    blocks = vendor_of(entry, ANTHROPIC, part).get(BLOCKS)
    found = [b for b in blocks if isinstance(b, dict)] if isinstance(blocks, list) else []
    return [b for b in found if isinstance(b.get("type"), str) and b["type"] not in _TOLD]


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _called_once(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries with ids that are taken here: of certain letters, and no id for two calls.

    Ids of other providers, which may stand in the same thread, can begin anew with each turn.
    """
    times, written = Counter[str](), dict[str, str]()
    for entry in entries:
        came_as = entry.id or ""
        if entry.type == "tool_call":
            again = times[came_as]
            times[came_as] += 1
            fits = _ID.fullmatch(came_as) and not again
            written[came_as] = came_as if fits else f"call_{digest([came_as, again])}"
        call_id = written.get(came_as, entry.id)
        yield entry if call_id == entry.id else entry.model_copy(update={"id": call_id})


def _head(entries: Sequence[Entry]) -> list[Entry]:
    return [*takewhile(lambda e: (e.origin, e.type) == ("system", "text"), entries)]


def _system(request: Request) -> str | None:
    told = (request.system, *(entry.text for entry in _head(request.entries)))
    return "\n\n".join(text for text in told if text and text.strip()) or None


def _tool(tool: Tool) -> Block:
    function = tool.definition.get("function")
    function = function if isinstance(function, dict) else {}
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, dict) else {}
    offered: Block = {"name": tool.name, "input_schema": {"type": "object", **schema}}
    if isinstance(function.get("description"), str):
        offered["description"] = function["description"]
    return offered
