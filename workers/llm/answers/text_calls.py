"""Text calls: calls that a server left in the text, because its template has no parser for them."""

import json
from collections.abc import Collection

from pydantic import JsonValue

from workers.llm.answers.json_text import parse

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def calls_in(text: str, offered: Collection[str]) -> list[JsonValue]:
    """The calls that the whole of `text` is, each to a tool that is offered; none otherwise."""
    text = text.strip()
    found: list[JsonValue]
    if text.startswith(OPENING):
        *blocks, rest = (block.strip() for block in text.split(CLOSING))
        if rest or not all(block.startswith(OPENING) for block in blocks):
            return []
        found = [parse(block.removeprefix(OPENING).strip()) for block in blocks]
    elif text[:1] in ("{", "["):
        value = parse(text)
        found = value if isinstance(value, list) else [value]
    else:
        return []
    calls: list[JsonValue] = [_call(one) for one in found]
    return calls if all(_name(call) in offered for call in calls) else []


def _call(written: JsonValue) -> dict[str, JsonValue]:
    """`written` as a call of the protocol; an empty one where it is none."""
    if not isinstance(written, dict):
        return {}
    inner = written.get("function")
    function = inner if isinstance(inner, dict) else written
    arguments = function.get("arguments", function.get("parameters"))
    # An object with a name is a call only where it says what it is called with.
    if not isinstance(arguments, (dict, str)):
        return {}
    # Of an object, no string is expected: it is what the model wrote, not what a server did.
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"function": {"name": function.get("name"), "arguments": text}}


def _name(call: JsonValue) -> str | None:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
