"""What a model was sent, for people: its settings, and message by message."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

if TYPE_CHECKING:
    from colony.access.threads import QuestionThread
    from colony.requests import SentRequest

# What of a request is shown otherwise than as one of its settings.
_SHOWN: Final = frozenset({"messages", "system", "tools"})
# What of a message is.
_PLAIN: Final = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def rounds(found: "QuestionThread", shown: "SentRequest") -> str:
    """Of which other rounds, and of which other cells, a request is kept."""
    from colony.cli.screen import counted, faint

    there = found.iterations()
    own = there.pop(shown.cell)
    parts = [f"  {counted(len(own), 'round')}: {_spans(own)}" + " (--iter N)" * (len(own) > 1)]
    parts += [f"{cell} in {_spans(numbers)} (--cell PATH)" for cell, numbers in there.items()]
    return faint("; ".join(parts))


def view(body: bytes, summaries: Mapping[str, int]) -> Iterator[str]:
    """A request: its settings, what is said before the messages, each message.

    A message that says one of the `summaries` is told with the rounds that one stands for.
    """
    from colony.cli.screen import faint, heading, legible, pairs

    request = parsed(body)
    if not isinstance(request, dict):
        yield legible(body.decode(errors="replace"))
        return
    yield faint(pairs({name: value for name, value in request.items() if name not in _SHOWN}))
    tools = request.get("tools")
    if isinstance(tools, list):
        yield faint(legible(f"tools: {', '.join(map(_tool_name, tools))}"))
    if "system" in request:
        yield f"\n{heading('system')}"
        yield from map(legible, _said(request["system"]))
    messages = request.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        yield from _message(number, message, summaries)


def parsed(body: bytes) -> JsonValue:
    """The JSON in a body, or its text where it is none."""
    try:
        value: JsonValue = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
    return value


def _message(number: int, message: JsonValue, summaries: Mapping[str, int]) -> Iterator[str]:
    from colony.cli.screen import faint, heading, legible

    told = message if isinstance(message, dict) else {"content": message}
    role, said, found = (
        told.get("role") or told.get("origin"),
        _said(told.get("content")),
        _calls(told),
    )
    parts = [faint(f"[{number}]"), heading(legible(str(role or "?")))]
    parts += [legible(str(told[key])) for key in ("tool_call_id", "id") if key in told]
    folded = [
        last for text, last in summaries.items() if any(piece.startswith(text) for piece in said)
    ]
    if folded and role == "assistant":
        last = max(folded)
        noun = "rounds" if last else "round"
        parts.append(f"summary of {noun} {_spans(range(last + 1))}")
    size = sum(len(text.encode(errors="replace")) for text in (*said, *map(_arguments, found)))
    yield "\n" + "  ".join([*parts, faint(f"{size} bytes")])
    yield from map(legible, said)
    yield from (legible(_call(call)) for call in found)
    rest = {key: value for key, value in told.items() if key not in _PLAIN}
    if rest:
        yield legible(_json(rest))


def _said(content: JsonValue) -> list[str]:
    """What a message says: a text, or blocks, of which those that are texts are told as such."""
    if content is None or isinstance(content, str):
        return [] if content is None else [content]
    blocks = content if isinstance(content, list) else [content]
    return [
        str(block["text"])
        if isinstance(block, dict) and block.keys() == {"type", "text"}
        else _json(block)
        for block in blocks
    ]


def _calls(message: Mapping[str, JsonValue]) -> list[JsonValue]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _function(call: JsonValue) -> Mapping[str, JsonValue] | None:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else None


def _arguments(call: JsonValue) -> str:
    function = _function(call)
    return _json(call) if function is None else str(function.get("arguments"))


def _call(call: JsonValue) -> str:
    function = _function(call)
    if not isinstance(call, dict) or function is None:
        return _json(call)
    return f"→ {function.get('name')} {call.get('id')}  {function.get('arguments')}"


def _tool_name(tool: JsonValue) -> str:
    function: JsonValue = tool.get("function", tool) if isinstance(tool, dict) else tool
    return str(function.get("name")) if isinstance(function, dict) else _json(tool)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _spans(numbers: Sequence[int]) -> str:
    """Numbers in order, those that follow each other as a span."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]}…{s[-1]}" for s in spans)
