"""CEL: how an expression is evaluated.

Only this module, `cel_functions` and `syntax` know cel-python. Where it departs from the CEL
specification, the specification is the meaning: `&&`, `||`, `?:`, `has()` and the macros are
evaluated here, all other operators in `cel_functions`. Nothing but ExpressionError leaves.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from celpy.celtypes import BoolType, DoubleType, IntType, ListType, MapType, StringType, UintType
from celpy.evaluation import (
    Activation,
    CELEvalError,
    CELFunction,
    CELSyntaxError,
    CELUnsupportedError,
    Evaluator,
)
from pydantic import JsonValue

from colony.errors import ExpressionError, MissingKey
from colony.topology.cel_functions import FUNCTIONS, TYPES, has_key, text
from colony.topology.syntax import (
    MACROS,
    Node,
    excerpt,
    identifier,
    inner,
    method,
    selection,
    trees,
)

# celpy's union of its value types cannot be narrowed by a test of what is not in it.
_Value: TypeAlias = Any

_EVALUATION_ERRORS = (
    CELEvalError,
    CELSyntaxError,
    CELUnsupportedError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_PHRASES: Sequence[tuple[type[Exception], str]] = (
    (ZeroDivisionError, "division by zero"),
    (IndexError, "index out of range"),
    (RecursionError, "nested too deep"),
    (ValueError, "a value out of range or malformed"),
    (ArithmeticError, "a value out of range or malformed"),
    (TypeError, "no such overload"),
    (AttributeError, "no such overload"),
)

# celpy logs whole activations at DEBUG, secrets included, and a line per failure at ERROR.
logging.getLogger("celpy").setLevel(logging.CRITICAL + 1)


def evaluate(
    source: str, tree: Node, variables: Mapping[str, Mapping[str, JsonValue]]
) -> JsonValue:
    """The value of the expression as plain JSON; what JSON cannot say is null.

    Raises MissingKey where the first error is a key that is absent, else ExpressionError.
    """
    try:
        bound = {name: _bind(dict(value)) for name, value in variables.items()}
        activation = Activation(vars=bound, functions=_FUNCTIONS, based_on=_TYPES)
        return to_json(_Evaluator(tree, activation).evaluate())
    except _EVALUATION_ERRORS as error:
        raise _failure(source, error) from None


def to_json(value: object) -> JsonValue:
    """A value as plain JSON that shares nothing with it; NaN and the infinities are null."""
    if value is None or type(value) in (str, int, bool):
        return cast(JsonValue, value)
    if isinstance(value, BoolType):
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {_json_key(key): to_json(item) for key, item in value.items()}
    return None


class _Evaluator(Evaluator):
    """celpy's evaluator, with logic, `has()`, map literals and macros as specified."""

    def conditionaland(self, tree: Node) -> _Value:
        return _decide(map(self.visit, trees(tree)), False)

    def conditionalor(self, tree: Node) -> _Value:
        return _decide(map(self.visit, trees(tree)), True)

    def expr(self, tree: Node) -> _Value:
        condition, then, otherwise = trees(tree)
        decided = _decide([self.visit(condition)], True)
        if not isinstance(decided, BoolType):
            return decided
        return self.visit(then if decided else otherwise)

    def macro_has_eval(self, exprlist: Node) -> _Value:
        container, name = selection(inner(exprlist))
        value = self.visit(container)
        if isinstance(value, CELEvalError):
            return value
        return BoolType(name in value) if isinstance(value, MapType) else _no_overload()

    def mapinits(self, tree: Node) -> _Value:
        values = [self.visit(child) for child in trees(tree)]
        result = MapType()
        for key, value in zip(values[::2], values[1::2], strict=True):
            for part in (key, value):
                if isinstance(part, CELEvalError):
                    return part
            if not isinstance(key, BoolType | IntType | UintType | StringType):
                raise TypeError("not a key")
            if has_key(result, key):
                raise ValueError("repeated key")
            result[key] = value
        return result

    def member_dot_arg(self, tree: Node) -> _Value:
        name, target, arguments = method(tree)
        if name not in MACROS:
            return super().member_dot_arg(tree)
        container = self.visit(target)
        if isinstance(container, CELEvalError):
            return container
        if not isinstance(container, ListType | MapType):
            return _no_overload()
        return self._macro(name, list(container), *arguments)

    def _macro(self, name: str, items: list[_Value], variable: Node, body: Node) -> _Value:
        results = (self._with(variable, item, body) for item in items)
        if name in ("all", "exists"):
            return _decide(results, name == "exists")
        values = list(results)
        for value in values:
            if isinstance(value, CELEvalError):
                return value
        if name == "map":
            return ListType(values)
        if not all(isinstance(value, BoolType) for value in values):
            return _no_overload()
        kept = [item for item, value in zip(items, values, strict=True) if value]
        return ListType(kept) if name == "filter" else BoolType(len(kept) == 1)

    def _with(self, variable: Node, item: _Value, body: Node) -> _Value:
        nested = self.activation.nested_activation(vars={identifier(variable) or "": item})
        return _Evaluator(body, nested).visit(body)


_FUNCTIONS = cast(dict[str, CELFunction], FUNCTIONS)
# Names of types are variables, because the functions of the same names are conversions.
_TYPES = Activation(vars=dict(TYPES))


def _decide(operands: Iterable[_Value], decisive: bool) -> _Value:
    """The value of `||` (decisive True) or `&&` (False): errors count only if nothing decides."""
    problem: _Value = None
    for operand in operands:
        if not isinstance(operand, BoolType):
            failed = operand if isinstance(operand, CELEvalError) else _no_overload()
            problem = failed if problem is None else problem
        elif bool(operand) is decisive:
            return BoolType(decisive)
    return BoolType(not decisive) if problem is None else problem


def _no_overload() -> CELEvalError:
    return CELEvalError("no such overload", TypeError, ())


def _bind(value: JsonValue) -> _Value:
    if value is None:
        return None
    if isinstance(value, bool):
        return BoolType(value)
    if isinstance(value, int):
        # Unchecked, so that an integer beyond 64 bits rides through; arithmetic on it overflows.
        return int.__new__(IntType, value)
    if isinstance(value, float):
        return DoubleType(value)
    if isinstance(value, str):
        return StringType(value)
    if isinstance(value, dict):
        return MapType({StringType(key): _bind(item) for key, item in value.items()})
    return ListType([_bind(item) for item in value])


def _json_key(key: object) -> str:
    return str(key) if type(key) is str else text(key)


def _failure(source: str, error: BaseException) -> ExpressionError:
    """What an exception of celpy means. Its text is not used: it quotes the values of headers."""
    if not isinstance(error, CELEvalError):
        return ExpressionError(detail=_phrase(type(error)))
    kind = error.args[1] if len(error.args) > 1 else TypeError
    where = excerpt(source, error.tree) if error.tree else f"{error.token or source}"
    if kind is KeyError:
        return MissingKey(detail=where)
    return ExpressionError(detail=f"{_phrase(kind)} in {where}")


def _phrase(kind: type[BaseException]) -> str:
    return next(
        (phrase for known, phrase in _PHRASES if issubclass(kind, known)), "cannot evaluate"
    )
