"""CEL functions: what an operator or function of an expression does with its operands.

The specification is the meaning (CEL language definition). cel-python leans on Python's own
operators, which add booleans to numbers, repeat and format strings and index lists backwards, so
every operator is given here. An operand that is an error is the result. TypeError means no such
overload, ValueError a value out of range or malformed; the evaluator makes errors of both.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TypeAlias

import re2  # type: ignore[import-untyped]
from celpy.celtypes import (
    BoolType,
    BytesType,
    DoubleType,
    DurationType,
    IntType,
    ListType,
    MapType,
    StringType,
    TimestampType,
    UintType,
)
from celpy.evaluation import CELEvalError, base_functions

Function: TypeAlias = Callable[..., object]

_NUMBERS = (IntType, UintType, DoubleType)
_TIMES = (TimestampType, DurationType)
_ORDERED = (BoolType, StringType, BytesType, *_TIMES)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?)")
_NOT_FINITE = re.compile(r"NaN|[+-]?Inf(inity)?")
# Else a broken pattern is printed to stderr, and a pattern may come from a header.
_QUIET = re2.Options()
_QUIET.log_errors = False
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "false", "FALSE", "False"), False),
}


def equal(left: object, right: object) -> bool:
    """Whether two values are equal: numbers by value, others only to their own type."""
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return _plain(left) == _plain(right)
    if isinstance(left, ListType) and isinstance(right, ListType):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, MapType) and isinstance(right, MapType):
        return len(left) == len(right) and all(
            has_key(right, key) and equal(value, lookup(right, key)) for key, value in left.items()
        )
    return type(left) is type(right) and left == right


def has_key(mapping: MapType, key: object) -> bool:
    """Whether a map has a key that is equal to `key`."""
    if isinstance(key, StringType):
        return key in mapping
    return any(equal(key, other) for other in mapping)


def lookup(mapping: MapType, key: object) -> object:
    """The value under a key that is equal to `key`; raises KeyError where there is none."""
    if isinstance(key, StringType):
        return dict.__getitem__(mapping, key)
    if not isinstance(key, (BoolType, *_NUMBERS)):
        raise TypeError(type(key))
    for other, value in mapping.items():
        if equal(key, other):
            return value
    raise KeyError(key)


def text(value: object) -> str:
    """What `string()` makes of a value."""
    if isinstance(value, BoolType):
        return "true" if value else "false"
    if isinstance(value, BytesType):
        return value.decode()
    if isinstance(value, (StringType, *_NUMBERS, *_TIMES)):
        return str(value)
    raise TypeError(type(value))


def _plain(number: object) -> float:
    # Comparisons of celpy's own number classes raise on a mixed pair; Python's are exact.
    return float(number) if isinstance(number, DoubleType) else int(number)  # type: ignore[call-overload]


def _strict(function: Function) -> Function:
    """The function, with the first operand that is an error as its result."""

    @wraps(function)
    def apply(*operands: object) -> object:
        for operand in operands:
            if isinstance(operand, CELEvalError):
                return operand
        return function(*operands)

    return apply


def _ordering(compare: Function) -> Function:
    def apply(left: object, right: object) -> object:
        if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
            return BoolType(compare(_plain(left), _plain(right)))
        if type(left) is type(right) and isinstance(left, _ORDERED):
            return BoolType(bool(compare(left, right)))
        raise TypeError(type(left), type(right))

    return apply


def _arithmetic(compute: Function, *types: type) -> Function:
    def apply(left: object, right: object) -> object:
        if isinstance(left, _TIMES) or isinstance(right, _TIMES):
            return compute(left, right)
        if type(left) is not type(right) or not isinstance(left, types):
            raise TypeError(type(left), type(right))
        result_type: Function = type(left)
        return result_type(compute(left, right))

    return apply


def _divide(left: object, right: object) -> object:
    if not isinstance(left, DoubleType) or not isinstance(right, DoubleType):
        return operator.truediv(left, right)
    dividend, divisor = float(left), float(right)
    if divisor != 0:
        return dividend / divisor
    if dividend == 0 or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


def _negate(value: object) -> object:
    if isinstance(value, (IntType, DoubleType)):
        return -value
    raise TypeError(type(value))


def _not(value: object) -> object:
    if isinstance(value, BoolType):
        return BoolType(not value)
    raise TypeError(type(value))


def _in(item: object, container: object) -> object:
    if isinstance(container, ListType):
        return BoolType(any(equal(item, other) for other in container))
    if isinstance(container, MapType):
        return BoolType(has_key(container, item))
    raise TypeError(type(container))


def _index(container: object, index: object) -> object:
    if isinstance(container, MapType):
        return lookup(container, index)
    if not isinstance(container, ListType) or not isinstance(index, (IntType, UintType)):
        raise TypeError(type(container), type(index))
    if not 0 <= int(index) < len(container):
        raise IndexError(index)
    return container[int(index)]


def _size(value: object) -> object:
    if isinstance(value, (StringType, BytesType, ListType, MapType)):
        return IntType(len(value))
    raise TypeError(type(value))


def _on_strings(test: Callable[[str, str], bool]) -> Function:
    def apply(value: object, fragment: object) -> object:
        if isinstance(value, StringType) and isinstance(fragment, StringType):
            return BoolType(test(value, fragment))
        raise TypeError(type(value), type(fragment))

    return apply


def _matches(value: str, pattern: str) -> bool:
    try:
        return re2.compile(pattern, _QUIET).search(value) is not None
    except re2.error as error:
        raise ValueError("not a regular expression") from error


def _to_integer(target: type[IntType] | type[UintType]) -> Function:
    def convert(value: object) -> object:
        if isinstance(value, StringType) and not _INTEGER.fullmatch(value):
            raise ValueError("not an integer")
        if isinstance(value, DoubleType) and not math.isfinite(value):
            raise ValueError("not a finite number")
        if isinstance(value, (StringType, TimestampType, *_NUMBERS)):
            # By way of int, because celpy reads hexadecimal text and keeps what is IntType as is.
            number = value.timestamp() if isinstance(value, TimestampType) else value
            return target(int(number))
        raise TypeError(type(value))

    return convert


def _to_double(value: object) -> object:
    if isinstance(value, StringType):
        if not _DOUBLE.fullmatch(value) and not _NOT_FINITE.fullmatch(value):
            raise ValueError("not a number")
        return DoubleType(value)
    if isinstance(value, _NUMBERS):
        return DoubleType(_plain(value))
    raise TypeError(type(value))


def _to_bool(value: object) -> object:
    if isinstance(value, BoolType):
        return value
    if isinstance(value, StringType):
        if value not in _BOOLEANS:
            raise ValueError("not a boolean")
        return BoolType(_BOOLEANS[value])
    raise TypeError(type(value))


def _to_bytes(value: object) -> object:
    if isinstance(value, (StringType, BytesType)):
        return BytesType(value)
    raise TypeError(type(value))


_CORRECTED: Mapping[str, Function] = {
    "_==_": lambda left, right: BoolType(equal(left, right)),
    "_!=_": lambda left, right: BoolType(not equal(left, right)),
    "_<_": _ordering(operator.lt),
    "_<=_": _ordering(operator.le),
    "_>_": _ordering(operator.gt),
    "_>=_": _ordering(operator.ge),
    "_+_": _arithmetic(operator.add, *_NUMBERS, StringType, BytesType, ListType),
    "_-_": _arithmetic(operator.sub, *_NUMBERS),
    "_*_": _arithmetic(operator.mul, *_NUMBERS),
    "_/_": _arithmetic(_divide, *_NUMBERS),
    "_%_": _arithmetic(operator.mod, IntType, UintType),
    "-_": _negate,
    "!_": _not,
    "_in_": _in,
    "_[_]": _index,
    "size": _size,
    "contains": _on_strings(lambda value, part: part in value),
    "startsWith": _on_strings(str.startswith),
    "endsWith": _on_strings(str.endswith),
    "matches": _on_strings(_matches),
    "int": _to_integer(IntType),
    "uint": _to_integer(UintType),
    "double": _to_double,
    "bool": _to_bool,
    "string": lambda value: StringType(text(value)),
    "bytes": _to_bytes,
}

FUNCTIONS: Mapping[str, Function] = {
    name: _strict(function) for name, function in _CORRECTED.items()
}

# Every function an expression may call; celpy's own are those of timestamps and durations.
NAMES = frozenset(name for name in (*base_functions, "dyn", "has") if name.isidentifier())

TYPES: Mapping[str, type] = {
    "bool": BoolType,
    "bytes": BytesType,
    "double": DoubleType,
    "int": IntType,
    "list": ListType,
    "map": MapType,
    "null_type": type(None),
    "string": StringType,
    "uint": UintType,
}
