"""Threads: entries as the messages of a chat completion, and an answer as entries.

Calls that stand together become one assistant message, because providers refuse a thread in which a
message with calls is not followed at once by the result of each.
"""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from colony.body import Entry
from workers.llm.provider import Answer, Call, Failure

Message = dict[str, JsonValue]


def to_messages(entries: Sequence[Entry], system: str | None) -> list[Message] | Failure:
    """The messages that `entries` are on the wire, after the system text."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for entry in entries:
        match entry.type:
            case "text" if entry.origin == "assistant" and _calls_of(messages):
                _say_beside_calls(messages, entry)
            case "text":
                role = "user" if entry.origin == "tool" else entry.origin
                messages.append({"role": role, "content": entry.text or ""})
            case "tool_call":
                call = _call(entry)
                if isinstance(call, Failure):
                    return call
                _add_call(messages, call)
            case "tool_result":
                messages.append(
                    {"role": "tool", "tool_call_id": entry.id, "content": entry.text or ""}
                )
            case "image" | "audio":
                detail = f"an entry of type {entry.type} cannot be sent; use attachments"
                return Failure("provider_error", detail, source="request")
    return messages


def to_entries(answer: Answer) -> tuple[Entry, ...]:
    """The new entries of an answer: its calls in their order, then its text."""
    calls = [_entry(call) for call in answer.calls]
    text = [] if answer.text is None else [Entry.say("assistant", answer.text)]
    return (*calls, *text)


def rounds(entries: Sequence[Entry]) -> int:
    """How many groups of calls the thread has after the last thing a user said."""
    count, within = 0, False
    for entry in entries:
        if entry.origin == "user" and entry.type == "text":
            count, within = 0, False
        elif entry.type == "tool_call":
            count, within = count + (not within), True
        else:
            # A text beside calls belongs to their group.
            within = within and entry.origin == "assistant"
    return count


def _entry(call: Call) -> Entry:
    function = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return Entry(origin="assistant", type="tool_call", id=call.id, text=function)


def _call(entry: Entry) -> Message | Failure:
    try:
        function = json.loads(entry.text or "")
        name, arguments = function["name"], function.get("arguments", "{}")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        detail = f"call {entry.id} is not the JSON of a function with a name"
        return Failure("invalid_input", detail, source="request")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": entry.id, "type": "function", "function": {"name": name, "arguments": text}}


def _add_call(messages: list[Message], call: Message) -> None:
    calls = _calls_of(messages)
    if calls is not None:
        calls.append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _say_beside_calls(messages: list[Message], entry: Entry) -> None:
    said = messages[-1]["content"]
    messages[-1]["content"] = f"{said}\n\n{entry.text}" if said else entry.text


def _calls_of(messages: Sequence[Message]) -> list[JsonValue] | None:
    found = messages[-1].get("tool_calls") if messages else None
    return found if isinstance(found, list) else None
