"""Calls: what a model asked for, read so that every call has one id and can be answered.

A call that cannot be run keeps its place in the history, in a form that providers accept, and has
a problem that becomes its result.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from colony.body import Entry
from colony.operations import MARK
from workers.written_arguments import argument_text, json_in

NAMELESS = "unknown"
EXCERPT = 200

# What the llm cell says of a call that is not to be run.
SAID: Mapping[str, str] = {
    "truncated": "the answer was cut before the call was complete, and it was not run",
    "invalid_arguments": "the arguments are not the JSON of an object",
    "missing_name": "the call names no tool",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a call is not run."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is the text of an object."""

    entry: Entry
    id: str
    name: str
    arguments: str
    problem: Problem | None = None

    def remembered(self) -> Entry:
        """The call as the thread keeps it, and as the provider gets it back."""
        function = {"name": self.name, "arguments": self.arguments}
        text = json.dumps(function, ensure_ascii=False)
        return self.entry.model_copy(update={"id": self.id, "text": text})

    def handed_over(self) -> Entry:
        """The call as its tool gets it: the bare arguments."""
        return Entry(origin="assistant", type="tool_call", id=self.id, text=self.arguments)


def read_calls(
    entries: Iterable[Entry], *, name_call: Callable[[int], str], limit: int
) -> list[ToolCall]:
    """The calls among `entries`, in order.

    An exact repeat under the same id is dropped. An id that is empty, taken by another call, or
    marked as that of no call becomes `name_call(position)`. Beyond `limit` calls none is run.
    """
    calls: dict[str, ToolCall] = {}
    came_as: dict[str, list[ToolCall]] = defaultdict(list)
    for position, entry in enumerate(entries):
        call = _read(entry)
        if call.id and any(_same(one, call) for one in came_as[call.id]):
            continue
        came_as[call.id].append(call)
        if not call.id or call.id in calls:
            call = replace(call, id=name_call(position))
        if len(calls) >= limit:
            detail = f"only {limit} calls of one answer are run"
            call = replace(call, problem=Problem("call_budget_exceeded", detail))
        calls[call.id] = call
    return list(calls.values())


def _same(one: ToolCall, other: ToolCall) -> bool:
    return (one.name, one.arguments) == (other.name, other.arguments)


def _read(entry: Entry) -> ToolCall:
    function = json_in(entry.text)
    call_id = entry.id or ""
    call = ToolCall(entry, "" if call_id.startswith(MARK) else call_id, NAMELESS, "{}")
    if not isinstance(function, dict):
        detail = f"the call is not the JSON of a function: {_excerpt(entry.text)}"
        return replace(call, problem=Problem("malformed_tool_call", detail))
    name, arguments = function.get("name"), argument_text(function.get("arguments"))
    if not isinstance(name, str) or not name:
        return replace(call, problem=_problem("missing_name"))
    call = replace(call, name=name, arguments=arguments or "{}")
    if function.get("problem") is not None:
        return replace(call, problem=_named(function["problem"], function.get("arguments")))
    if arguments is None:
        return replace(call, problem=_problem("invalid_arguments", function.get("arguments")))
    return call


def _named(code: object, arguments: object) -> Problem:
    """The problem that whoever read the call has found; it is one, whatever it is called."""
    if isinstance(code, str) and code in SAID:
        return _problem(code, arguments)
    return Problem("malformed_tool_call", f"the call came with a problem: {_excerpt(code)}")


def _problem(code: str, arguments: object = None) -> Problem:
    detail = SAID[code] if arguments is None else f"{SAID[code]}: {_excerpt(arguments)}"
    return Problem(code, detail)


def _excerpt(written: object) -> str:
    text = written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "…"


def spoken(entries: Sequence[Entry], calls: Sequence[ToolCall]) -> list[Entry]:
    """An answer as the thread keeps it: its prose, and its calls where they stood."""
    kept = {id(call.entry): call for call in calls}
    prose = [e for e in entries if e.type == "text" and e.origin == "assistant" and e.text]
    beside = {id(entry) for entry in prose}
    return [
        kept[id(entry)].remembered() if id(entry) in kept else entry
        for entry in entries
        if id(entry) in kept or id(entry) in beside
    ]
