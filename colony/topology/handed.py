"""Handed: what a template accepts of the hive that it is laid into."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from colony.topology import substitution
from colony.topology.findings import Findings, Flaw, Place
from colony.topology.substitution import PLACEHOLDER, Substituted

EXCERPT = 300

Schema = Mapping[str, JsonValue]

_EMPTY: Mapping[str, JsonValue] = {"array": [], "object": {}, "boolean": False}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The parameters of a template by name, each with the JSON Schema of its values.

    One whose schema has no `default` has to be handed over.
    """

    template: str
    schemas: Mapping[str, Schema]

    @classmethod
    def read(
        cls, template: str, schemas: Mapping[str, Schema], place: Place, findings: Findings
    ) -> Self:
        """The parameters as the template declares them, with a finding for each broken schema and
        for each default that its own schema refuses."""
        found: dict[str, Schema] = {}
        for name, schema in schemas.items():
            found[name] = schema
            try:
                Draft202012Validator.check_schema(schema)
            except SchemaError as error:
                sentence = f"This is no JSON Schema: {_told(error)}."
                findings.error(place.at(name, *error.absolute_path), "invalid_value", sentence)
                found[name] = {"default": PLACEHOLDER}
                continue
            if "default" in schema:
                for flaw in _flaws("default", schema, substitution.resolve(schema["default"], {})):
                    findings.flaw(place.at(name), flaw)
        return cls(template, found)

    def fill(
        self,
        handed: Mapping[str, JsonValue],
        variables: Mapping[str, str],
        place: Place,
        findings: Findings,
    ) -> dict[str, JsonValue]:
        """A value for each parameter: the one that is handed over, else the default.

        Adds a finding at `place` for each value that is wrong, missing or not asked for; what
        stands for it is good enough for the rest of the tree to be judged.
        """
        for name in sorted(handed.keys() - self.schemas.keys()):
            accepted = ", ".join(sorted(self.schemas)) or "nothing"
            sentence = f"The template {self.template!r} accepts no {name!r}; it accepts {accepted}."
            findings.error(place.at(name), "unknown_key", sentence)
        filled: dict[str, JsonValue] = {}
        for name, schema in self.schemas.items():
            filled[name] = _stand_in(schema)
            if name in handed:
                flaws = [*_flaws(name, schema, substitution.resolve(handed[name], variables))]
                for flaw in flaws:
                    findings.flaw(place, flaw)
                filled[name] = filled[name] if flaws else handed[name]
            elif "default" not in schema:
                sentence = f"The template {self.template!r} needs a value for {name!r}."
                findings.error(place.at(name), "with_missing", sentence)
        return filled


def _stand_in(schema: Schema) -> JsonValue:
    """The default of a value, else something that may well be one."""
    values = schema.get("enum")
    found = (
        values[0] if isinstance(values, list) and values else _EMPTY.get(str(schema.get("type")))
    )
    return schema.get("default", PLACEHOLDER if found is None else found)


def _flaws(name: str, schema: Schema, handed: Substituted) -> Iterator[Flaw]:
    """What a schema finds wrong with a value; unset variables are given the benefit."""
    if handed.failed(()):
        return
    problems = _problems(schema, handed.value)
    if problems and handed.used and isinstance(handed.value, str):
        # What comes out of a variable is a text, also where it says a number.
        problems = _problems(schema, _read(handed.value)) and problems
    for steps, problem in problems:
        sentence = f"The value of {name!r} does not fit: {problem}."
        yield Flaw("invalid_value", sentence, (name, *steps))


def _problems(schema: Schema, value: JsonValue) -> list[tuple[tuple[str | int, ...], str]]:
    # An empty registry, because the default one fetches what a schema refers to.
    validator = Draft202012Validator(dict(schema), registry=Registry())
    try:
        return [
            (tuple(error.absolute_path), _told(error)) for error in validator.iter_errors(value)
        ]
    except Unresolvable as error:
        return [((), f"its schema leads nowhere: {error}")]


def _read(text: str) -> JsonValue:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found  # type: ignore[no-any-return]


def _told(error: ValidationError | SchemaError) -> str:
    message = error.message.rstrip(".")
    return message if len(message) <= EXCERPT else message[:EXCERPT] + "…"
