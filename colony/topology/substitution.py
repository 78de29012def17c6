"""Substitution: what `${NAME}` in the strings of a tree becomes.

`${NAME}` and `${NAME:-default}` are variables of the environment, `${with.name}` is a value that a
hive hands to its template, and `$${` is a literal `${`. What is put in is not searched again.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dotenv import dotenv_values
from pydantic import JsonValue

from colony.errors import SubstitutionError, TopologyError, VariableUnset
from colony.topology.findings import Step

# Stands in for a variable that is not set: valid as a path, inside a CEL string and as a number.
PLACEHOLDER = "0"

_REFERENCE = re.compile(r"(?P<escape>\$?)\$\{(?P<inside>[^}]*)(?P<close>\}?)")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>.*))?", re.DOTALL)
_WITH = re.compile(r"with\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)")

Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Substituted:
    """A value with its references replaced, and the places where that failed.

    `unset` pairs a place with the name that has no value, `unsupported` with the reference as it
    is written. `used` are the names that were looked up.
    """

    value: JsonValue
    unset: tuple[tuple[Steps, str], ...]
    unsupported: tuple[tuple[Steps, str], ...]
    used: frozenset[str]

    def failed(self, steps: Steps) -> bool:
        """Whether something at or below `steps` could not be replaced."""
        places = (place for place, _ in (*self.unset, *self.unsupported))
        return any(place[: len(steps)] == steps for place in places)


def variables(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What `${NAME}` stands for in the tree at `root`: the environment, then the tree's `.env`.

    Raises TopologyError where that file cannot be read.
    """
    try:
        written = dotenv_values(root / ".env", interpolate=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(detail=f".env cannot be read: {error}") from None
    return {name: text for name, text in written.items() if text is not None} | dict(environment)


def substitute(
    params: Mapping[str, JsonValue], environment: Mapping[str, str]
) -> dict[str, JsonValue]:
    """`params` with every variable replaced, as a worker needs them.

    Raises VariableUnset with the names of all that are missing, SubstitutionError for a reference
    of another form.
    """
    result = resolve(dict(params), environment)
    if result.unsupported:
        raise SubstitutionError(reference=result.unsupported[0][1])
    if result.unset:
        raise VariableUnset(names=", ".join(sorted({name for _, name in result.unset})))
    assert isinstance(result.value, dict)
    return result.value


def resolve(value: JsonValue, environment: Mapping[str, str]) -> Substituted:
    """`value` with its variables replaced; one that is not set becomes a placeholder."""
    walk = _Walk()

    def replaced(match: re.Match[str], steps: Steps) -> str:
        if match["escape"]:
            return match[0][1:]
        reference = _VARIABLE.fullmatch(match["inside"])
        if reference is None or not match["close"]:
            walk.unsupported.append((steps, match[0]))
            return match[0]
        return walk.look_up(reference["name"], environment, steps, default=reference["default"])

    return walk.over(value, lambda text, steps: _sub(text, steps, replaced))


def lay_in(value: JsonValue, handed: Mapping[str, JsonValue]) -> Substituted:
    """`value` with each `${with.name}` replaced by what the hive hands to its template.

    A string that is nothing but one reference takes the value whole, whatever its type. Variables
    and escapes stay for later.
    """
    walk = _Walk()
    texts = {name: _as_text(item) for name, item in handed.items()}

    def replaced(match: re.Match[str], steps: Steps) -> str:
        reference = _WITH.fullmatch(match["inside"])
        if match["escape"] or reference is None or not match["close"]:
            return match[0]
        return walk.look_up(reference["name"], texts, steps)

    def string(text: str, steps: Steps) -> JsonValue:
        whole = _REFERENCE.fullmatch(text)
        reference = whole and not whole["escape"] and _WITH.fullmatch(whole["inside"])
        if reference and reference["name"] in handed:
            walk.used.add(reference["name"])
            return handed[reference["name"]]
        return _sub(text, steps, replaced)

    return walk.over(value, string)


@dataclass
class _Walk:
    unset: list[tuple[Steps, str]] = field(default_factory=list)
    unsupported: list[tuple[Steps, str]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def look_up(
        self, name: str, values: Mapping[str, str], steps: Steps, *, default: str | None = None
    ) -> str:
        self.used.add(name)
        # As in a shell: a default also stands in for a variable that is set to nothing.
        found = values.get(name) or default
        if found is not None:
            return found
        if name in values:
            return ""
        self.unset.append((steps, name))
        return PLACEHOLDER

    def over(self, value: JsonValue, string: Callable[[str, Steps], JsonValue]) -> Substituted:
        replaced = _map_strings(value, (), string)
        return Substituted(
            replaced, tuple(self.unset), tuple(self.unsupported), frozenset(self.used)
        )


def _map_strings(
    value: JsonValue, steps: Steps, string: Callable[[str, Steps], JsonValue]
) -> JsonValue:
    if isinstance(value, str):
        return string(value, steps)
    if isinstance(value, list):
        return [_map_strings(item, (*steps, at), string) for at, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _map_strings(item, (*steps, key), string) for key, item in value.items()}
    return value


def _sub(text: str, steps: Steps, replaced: Callable[[re.Match[str], Steps], str]) -> str:
    return _REFERENCE.sub(lambda match: replaced(match, steps), text) if "${" in text else text


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
