"""Calls: what a model asks to be run, read from however its provider wrote it.

A call is kept even where it cannot be run, because each call is answered.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from colony.envelope import digest
from workers.llm.answers.json_text import parse
from workers.llm.provider import AnswerWarning, Call, CallProblem

# What of a call we read ourselves; everything else is the provider's own and goes back with it.
_OF_A_CALL = frozenset({"id", "type", "index", "function"})
_OF_A_FUNCTION = frozenset({"name", "arguments"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call: the text of a JSON object, or as written and what is wrong."""

    text: str
    problem: CallProblem | None = None


def written_calls(message: dict[str, JsonValue], warnings: set[AnswerWarning]) -> list[JsonValue]:
    """The calls of a message as they stand there, the single one of an older protocol included."""
    written = message.get("tool_calls")
    if written and isinstance(written, (list, dict)):
        return written if isinstance(written, list) else [written]
    legacy = message.get("function_call")
    if not isinstance(legacy, dict):
        return []
    warnings.add("legacy_function_call")
    return [{"function": legacy}]


def read_calls(
    written: Sequence[JsonValue], *, seed: str, warnings: set[AnswerWarning]
) -> tuple[Call, ...]:
    """The calls in the model's order, each under an id that no other has.

    An exact repeat is dropped. `seed` makes the ids of those that have none.
    """
    calls: dict[str, Call] = {}
    came_as: dict[str, list[Call]] = defaultdict(list)
    ids = [one.get("id") for one in written if isinstance(one, dict)]
    taken = {one for one in ids if isinstance(one, str)}
    for position, one in enumerate(written):
        call = _call(one if isinstance(one, dict) else {}, warnings)
        if call.id and any(_same(one, call) for one in came_as[call.id]):
            warnings.add("call_duplicate_dropped")
            continue
        came_as[call.id].append(call)
        if not call.id or call.id in calls:
            warnings.add("id_duplicate" if call.id else "id_synthesized")
            call = call.model_copy(update={"id": _unused(seed, position, taken)})
        calls[call.id] = call
    return tuple(calls.values())


def read_arguments(written: JsonValue, warnings: set[AnswerWarning]) -> Arguments:
    """The arguments that `written` are; nothing at all is an empty object."""
    if not isinstance(written, str):
        warnings.add("arguments_not_string")
        return _of_value({} if written is None else written)
    if not written.strip():
        return Arguments("{}")
    found = parse(written)
    if isinstance(found, dict):
        return Arguments(written)
    if isinstance(found, str) and isinstance(parse(found), dict):
        warnings.add("arguments_double_encoded")
        return Arguments(found)
    return Arguments(written, "invalid_arguments")


def made_up_id(seed: str, position: int) -> str:
    """The id of a call that has none: the same whenever the same call is made again."""
    return f"call_{digest([seed, position])}"


def _call(call: dict[str, JsonValue], warnings: set[AnswerWarning]) -> Call:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    name = function.get("name")
    name = name.strip() if isinstance(name, str) else ""
    arguments = read_arguments(function.get("arguments", ""), warnings)
    return Call(
        id=_id(call.get("id"), warnings),
        name=name,
        arguments=arguments.text,
        problem=arguments.problem if name else "missing_name",
        vendor=_vendor(call, function),
    )


def _id(written: JsonValue, warnings: set[AnswerWarning]) -> str:
    if isinstance(written, str):
        return written.strip()
    if isinstance(written, (int, float)) and not isinstance(written, bool):
        warnings.add("id_not_string")
        return str(written)
    return ""


def _same(one: Call, other: Call) -> bool:
    return one.name == other.name and _value(one) == _value(other)


def _value(call: Call) -> JsonValue:
    return call.arguments if call.problem == "invalid_arguments" else parse(call.arguments)


def _unused(seed: str, position: int, taken: set[str]) -> str:
    # A server that was told an id of ours may give it to another call.
    made_up = made_up_id(seed, position)
    while made_up in taken:
        made_up = made_up_id(made_up, position)
    return made_up


def _of_value(value: JsonValue) -> Arguments:
    text = json.dumps(value, ensure_ascii=False)
    return Arguments(text, None if isinstance(value, dict) else "invalid_arguments")


def _vendor(
    call: dict[str, JsonValue], function: dict[str, JsonValue]
) -> dict[str, JsonValue] | None:
    kept = own_fields(call, _OF_A_CALL)
    inner = own_fields(function, _OF_A_FUNCTION)
    return ({**kept, "function": inner} if inner else kept) or None


def own_fields(fields: dict[str, JsonValue], known: frozenset[str]) -> dict[str, JsonValue]:
    """What a provider wrote beside the `known` fields, without what it left empty."""
    return {name: value for name, value in fields.items() if name not in known and value}
