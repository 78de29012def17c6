"""Documents: the JSON files of a tree, held against their schemas."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from colony.body import check_nesting
from colony.errors import BodyError
from colony.topology.findings import Findings, Flaw, Place, Step

Model = TypeVar("Model", bound=BaseModel)
Steps = tuple[Step, ...]

_CODES = {"extra_forbidden": "unknown_key", "missing": "missing_key"}


def read_text(file: Path, place: Place, findings: Findings) -> str | None:
    """The text of `file`, or None with a finding where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        findings.error(place, "unreadable_file", f"The file cannot be read: {reason}.")
        return None


def read_object(file: Path, place: Place, findings: Findings) -> dict[str, JsonValue] | None:
    """The JSON object in `file`, or None with a finding where there is none."""
    text = read_text(file, place, findings)
    if text is None:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        check_nesting(value)
        # Half a surrogate pair can be written in JSON and can be published nowhere.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError, BodyError) as error:
        findings.error(place, "invalid_json", f"This is not JSON: {error}.")
        return None
    if not isinstance(value, dict):
        findings.error(place, "invalid_json", "The file must hold a JSON object.")
        return None
    return value


def check(
    model: type[Model],
    value: JsonValue,
    place: Place,
    findings: Findings,
    *,
    excused: Callable[[Steps], bool] = lambda steps: False,
    strict: bool | None = None,
) -> Model | None:
    """`value` as a `model`, or None with a finding for each thing that is wrong with it.

    What is wrong at a place that is `excused` (its variable is not set) is no finding.
    """
    try:
        return model.model_validate_json(json.dumps(value), strict=strict)
    except ValidationError as error:
        for flaw in flaws(error, value):
            if not excused(flaw.steps):
                findings.flaw(place, flaw)
        return None


def flaws(error: ValidationError, value: JsonValue) -> Iterator[Flaw]:
    """Each thing that a model finds wrong with `value`, at its place in it."""
    for problem in error.errors(include_url=False, include_input=False):
        steps = _steps_in(value, problem["loc"])
        code = _CODES.get(problem["type"], "invalid_value")
        yield Flaw(code, _sentence(problem, steps), steps)


def _sentence(problem: ErrorDetails, steps: Steps) -> str:
    key = steps[-1] if steps else "value"
    if problem["type"] == "extra_forbidden":
        return f"There is no key {key!r} here; look for a misspelling."
    if problem["type"] == "missing":
        return f"The key {key!r} is missing."
    message = problem["msg"].removeprefix("Value error, ")
    return f"The value of {key!r} does not fit: {message[:1].lower()}{message[1:]}."


def _steps_in(value: JsonValue, location: Sequence[Step]) -> Steps:
    """The part of `location` that leads through `value`: names of union members are left out."""
    steps: list[Step] = []
    for at, step in enumerate(location):
        last = at == len(location) - 1
        if isinstance(value, dict) and isinstance(step, str) and (step in value or last):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            continue
        steps.append(step)
    return tuple(steps)


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is written twice in one object")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
