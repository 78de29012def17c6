"""Arguments: whether a call fits what its tool declares."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from colony.body import Body, Entry, check_nesting
from colony.errors import BodyError, ConfigError
from colony.topology.model import ToolDeclaration

MAX_PROBLEMS = 5
EXCERPT = 300


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool whose calls can be held against its declaration."""

    declaration: ToolDeclaration
    _validator: Draft202012Validator

    @classmethod
    def of(cls, declaration: ToolDeclaration) -> "DeclaredTool":
        """The tool; raises ConfigError where its parameters are no JSON Schema."""
        return cls._checked(declaration, Draft202012Validator, Draft202012Validator.FORMAT_CHECKER)

    @classmethod
    def of_stranger(cls, declaration: ToolDeclaration) -> "DeclaredTool":
        """A tool of somebody else's server, which checks by itself what its patterns demand.

        They are written for another language as often as not, and one can take for ever.
        """
        return cls._checked(declaration, _WithoutPatterns, FormatChecker(()))

    @classmethod
    def _checked(
        cls,
        declaration: ToolDeclaration,
        kind: type[Draft202012Validator],
        formats: FormatChecker,
    ) -> "DeclaredTool":
        schema = declaration.parameters
        detail = f"the parameters of the tool {declaration.name} are no JSON Schema"
        try:
            kind.check_schema(schema, format_checker=formats)
        except SchemaError as error:
            raise ConfigError(detail=f"{detail}: {_sentence(error)}") from None
        except RecursionError:
            raise ConfigError(detail=f"{detail} that can be followed so deep") from None
        # An empty registry, because the default one fetches what a schema refers to.
        return cls(declaration, kind(schema, registry=Registry()))

    def misfits(self, body: Body) -> dict[str, str]:
        """What is wrong with the calls in `body`, by the ids of those that do not fit."""
        found = ((call.id or "", self._problem(call)) for call in body.each("tool_call"))
        return {call_id: problem for call_id, problem in found if problem is not None}

    def _problem(self, call: Entry) -> str | None:
        try:
            arguments: JsonValue = json.loads(call.text or "", parse_constant=_refuse)
            check_nesting(arguments)
        except (ValueError, RecursionError) as error:
            return f"the arguments are no JSON: {error or type(error).__name__}"
        except BodyError as error:
            return f"the arguments are {error}"
        if not isinstance(arguments, dict):
            return "the arguments are not a JSON object"
        try:
            errors = islice(self._validator.iter_errors(arguments), MAX_PROBLEMS)
            return "; ".join(_sentence(error) for error in errors) or None
        except Unresolvable as error:
            return f"the tool declares parameters that lead nowhere: {error}"
        except ArithmeticError as error:
            return f"the arguments hold a number that cannot be reckoned with: {error}"
        except RecursionError:
            return "the arguments are nested deeper than their declaration can be followed"


def _additional_properties(
    validator: Draft202012Validator, allowed: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    # Which properties are additional depends on the patterns.
    if "patternProperties" not in schema:
        check = Draft202012Validator.VALIDATORS["additionalProperties"]
        yield from check(validator, allowed, instance, schema)


def _left_to_the_stranger(*_: object) -> tuple[()]:
    return ()


_WithoutPatterns = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _left_to_the_stranger,
        "patternProperties": _left_to_the_stranger,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _left_to_the_stranger,
    },
)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _sentence(error: ValidationError | SchemaError) -> str:
    text = "".join(_shortened(error))
    # Arguments may hold half a surrogate pair, which no text of an envelope can.
    return text.encode(errors="replace").decode()


def _shortened(error: ValidationError | SchemaError) -> Iterator[str]:
    place = ".".join(str(part) for part in error.absolute_path)
    if place:
        yield f"{place[:EXCERPT]}: "
    message = error.message
    yield message if len(message) <= EXCERPT else message[:EXCERPT] + "…"
