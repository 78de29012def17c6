"""Threads: entries as the messages of a chat completion, and an answer as entries.

Calls that stand together become one assistant message, because providers refuse a thread in which a
message with calls is not followed at once by the result of each. What a provider wants back with a
turn or a call is kept on the entries under the name of the provider, and goes to no other.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from colony.body import Entry
from workers.llm.provider import Answer, Call, ErrorCode, Failure
from workers.llm.threads.functions import read_function, sendable_name, write_function

Message = dict[str, JsonValue]

OPENAI = "openai"
TURN, CALL = "turn", "call"
MAX_NAME = 64
# What colony alone says of a message, whatever was kept beside it.
_OURS = frozenset({"role", "content", "tool_calls", "tool_call_id", "function_call"})


def to_messages(entries: Sequence[Entry], system: str | None) -> list[Message] | Failure:
    """The messages that `entries` are on the wire, after the system text.

    The thread is one in which every call is answered at once, as `repaired` gives it.
    """
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for entry in entries:
        match entry.type:
            case "text" if entry.origin == "assistant" and _calls_of(messages):
                _say_beside_calls(messages, entry)
            case "text":
                role = "user" if entry.origin == "tool" else entry.origin
                messages.append({"role": role, "content": entry.text or ""})
                if entry.origin == "assistant":
                    _give_back(messages[-1], vendor_of(entry, OPENAI, TURN))
            case "tool_call":
                call = _call(entry)
                if isinstance(call, Failure):
                    return call
                _add_call(messages, call)
                _give_back(messages[-1], vendor_of(entry, OPENAI, TURN))
            case "tool_result":
                messages.append(
                    {"role": "tool", "tool_call_id": entry.id, "content": entry.text or ""}
                )
            case "image" | "audio":
                return not_sendable(entry)
    return messages


def to_entries(answer: Answer, provider: str) -> tuple[Entry, ...]:
    """The new entries of an answer: its calls in their order, then its text.

    The first of them has what `provider` wants back with the turn, each call what belongs to it.
    """
    entries = [_entry(call, provider) for call in answer.calls]
    if answer.text is not None:
        entries.append(Entry.say("assistant", answer.text))
    if entries and answer.vendor:
        entries[0] = _with_vendor(entries[0], provider, TURN, answer.vendor)
    return tuple(entries)


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


def vendor_of(entry: Entry, provider: str, part: str) -> Mapping[str, JsonValue]:
    """What `provider` wants back with an entry: for its whole turn, or for the call that it is."""
    kept = (entry.vendor or {}).get(provider)
    found = kept.get(part) if isinstance(kept, dict) else None
    return found if isinstance(found, dict) else {}


def not_sendable(entry: Entry) -> Failure:
    """The failure of a thread with an entry that no message can hold."""
    detail = f"an entry of type {entry.type} cannot be sent; use attachments"
    return unaskable("provider_error", detail)


def no_function(entry: Entry) -> Failure:
    """The failure of a thread with a call that names no function."""
    detail = f"call {entry.id} is not the JSON of a function with a name"
    return unaskable("invalid_input", detail)


def unaskable(code: ErrorCode, detail: str) -> Failure:
    """The failure of a thread that makes no request: nothing was sent, nor ever will be."""
    return Failure(code, detail, source="request", disposition="permanent", progress="precommit")


def _entry(call: Call, provider: str) -> Entry:
    text = write_function(call.name, call.arguments, problem=call.problem)
    entry = Entry(origin="assistant", type="tool_call", id=call.id, text=text)
    return _with_vendor(entry, provider, CALL, call.vendor) if call.vendor else entry


def _with_vendor(entry: Entry, provider: str, part: str, vendor: Mapping[str, JsonValue]) -> Entry:
    kept = (entry.vendor or {}).get(provider)
    parts = {**(kept if isinstance(kept, dict) else {}), part: dict(vendor)}
    return entry.model_copy(update={"vendor": {provider: parts}})


def _call(entry: Entry) -> Message | Failure:
    function = read_function(entry)
    if function is None:
        return no_function(entry)
    name = sendable_name(function.name, limit=MAX_NAME)
    written: Message = {"name": name, "arguments": function.arguments}
    call: Message = {"id": entry.id, "type": "function", "function": written}
    vendor = dict(vendor_of(entry, OPENAI, CALL))
    within = vendor.pop("function", None)
    _give_back(written, within if isinstance(within, dict) else {})
    _give_back(call, vendor)
    return call


def _give_back(message: Message, vendor: Mapping[str, JsonValue]) -> None:
    # What colony says itself is not said again by what was kept.
    ours = _OURS | set(message)
    message.update({name: value for name, value in vendor.items() if name not in ours})


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
