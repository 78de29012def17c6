"""Expressions: what a condition or a modifier value of an edge comes to.

An expression is a pure function of the header keys it names, so its outcome is remembered under
the types and values of exactly those keys; interpreting takes a hundred times as long.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple, Self, TypeAlias

from pydantic import JsonValue

from colony.errors import ExpressionError, MissingKey
from colony.topology import analysis, cel, syntax
from colony.topology.analysis import WHOLE, Key, Keys, Literals

__all__ = ["WHOLE", "Expression", "Key", "Keys", "Literals", "Verdict"]

Headers: TypeAlias = Mapping[str, JsonValue]

# Entries of the memo of this process, and the longest text that may be part of one's key.
MEMO_ENTRIES = 32_768
MEMO_TEXT = 256


class Verdict(StrEnum):
    """How a condition ends."""

    TRUE = "true"
    FALSE = "false"
    MISSING = "missing"
    ERROR = "error"


@dataclass(frozen=True)
class Expression:
    """A parsed expression over `context` and `hop`. Expressions with the same source are equal."""

    source: str
    _tree: syntax.Node = field(repr=False, compare=False)

    @classmethod
    def parse(cls, source: str) -> Self:
        """The expression that `source` spells.

        Raises ExpressionTooLarge above 4 KiB or depth 32, ExpressionError for what is not CEL. A
        name that does not exist is no reason to refuse: see `undeclared`.
        """
        return cls(source, syntax.parse(source))

    def condition(self, context: Headers, hop: Headers) -> Verdict:
        """How the expression ends as a condition: anything but true and false is an error."""
        return self._outcome(context, hop).verdict

    def value(self, context: Headers, hop: Headers) -> JsonValue:
        """The value as plain JSON; raises MissingKey or ExpressionError where there is none."""
        outcome = self._outcome(context, hop)
        if outcome.failure is not None:
            raise outcome.failure(detail=outcome.detail)
        if isinstance(outcome.value, list | dict):
            # The memo keeps the original; whoever changes this one changes nobody else's.
            return cel.to_json(outcome.value)
        return outcome.value

    @cached_property
    def reads(self) -> Keys:
        """The keys the value depends on, as (root, name); (root, WHOLE) for all of a root."""
        return analysis.reads(self._tree)

    @cached_property
    def unguarded_reads(self) -> Keys:
        """The keys read where nothing to the left made sure they exist, such as `has()`."""
        return analysis.unguarded_reads(self._tree)

    @cached_property
    def guarantees(self) -> Keys:
        """The keys that exist whenever the expression is true."""
        return analysis.guarantees(self._tree)

    @cached_property
    def undeclared(self) -> frozenset[str]:
        """Names that do not exist; with any, every evaluation is an error."""
        return analysis.undeclared(self._tree)

    @cached_property
    def comparisons(self) -> Mapping[Key, Literals]:
        """By key, the literals of which it must equal one for the expression to be true."""
        return analysis.comparisons(self._tree)

    @cached_property
    def exclusions(self) -> Mapping[Key, Literals]:
        """By key, the literals that a negation or `!=` keeps out."""
        return analysis.exclusions(self._tree)

    @cached_property
    def upper_bounds(self) -> Mapping[Key, int]:
        """By key, the integer below which it must be for the expression to be true."""
        return analysis.upper_bounds(self._tree)

    @cached_property
    def landmarks(self) -> Mapping[Key, Literals]:
        """By key, every literal that it is held against anywhere."""
        return analysis.landmarks(self._tree)

    @cached_property
    def subtractions(self) -> tuple[str, ...]:
        """What looks like a key and is a subtraction: `hop.tool-name`."""
        return analysis.subtractions(self._tree)

    def _outcome(self, context: Headers, hop: Headers) -> "_Outcome":
        if self._constant is not None:
            return self._constant
        if self._bare is not None:
            return _select(self._bare, context if self._bare[0] == "context" else hop)
        key = self._memo_key(context, hop)
        if key is None:
            return self._evaluate(context, hop)
        outcome = _memo.get(key)
        if outcome is None:
            outcome = self._evaluate(context, hop)
            _memo[key] = outcome
            if len(_memo) > MEMO_ENTRIES:
                _memo.popitem(last=False)
        else:
            _memo.move_to_end(key)
        return outcome

    def _memo_key(self, context: Headers, hop: Headers) -> tuple[object, ...] | None:
        """The source with type and value of each key; None where that would be too long."""
        if self._reads_whole:
            return None
        key: list[object] = [self.source]
        for in_hop, name in self._names:
            value: object = (hop if in_hop else context).get(name, _ABSENT)
            if isinstance(value, float | list | dict):
                # Text keeps apart what Python holds equal: 0.0 and -0.0; 1 and True in a list.
                key += (type(value), json.dumps(value))
            else:
                key += (type(value), value)
            if isinstance(key[-1], str) and len(key[-1]) > MEMO_TEXT:
                return None
        return tuple(key)

    def _evaluate(self, context: Headers, hop: Headers) -> "_Outcome":
        if self.undeclared:
            names = ", ".join(sorted(self.undeclared))
            return _Outcome.failed(ExpressionError, f"undeclared: {names}")
        variables = {"context": self._read_of("context", context), "hop": self._read_of("hop", hop)}
        try:
            return _Outcome.of(cel.evaluate(self.source, self._tree, variables))
        except ExpressionError as error:
            return _Outcome.failed(type(error), str(error.facts["detail"]))

    def _read_of(self, root: str, headers: Headers) -> Headers:
        """The part of `headers` that the expression reads; the rest is not worth converting."""
        if (root, WHOLE) in self.reads:
            return headers
        return {name: headers[name] for top, name in self.reads if top == root and name in headers}

    @cached_property
    def _names(self) -> tuple[tuple[bool, str], ...]:
        return tuple((root == "hop", name) for root, name in sorted(self.reads))

    @cached_property
    def _reads_whole(self) -> bool:
        return any(name == WHOLE for _, name in self.reads)

    @cached_property
    def _bare(self) -> Key | None:
        return analysis.bare_key(self._tree)

    @cached_property
    def _constant(self) -> "_Outcome | None":
        return None if self.reads else self._evaluate({}, {})


class _Outcome(NamedTuple):
    verdict: Verdict
    value: JsonValue = None
    failure: type[ExpressionError] | None = None
    detail: str = ""

    @classmethod
    def of(cls, value: JsonValue) -> Self:
        if isinstance(value, bool):
            return cls(Verdict.TRUE if value else Verdict.FALSE, value)
        return cls(Verdict.ERROR, value)

    @classmethod
    def failed(cls, failure: type[ExpressionError], detail: str) -> Self:
        missing = issubclass(failure, MissingKey)
        return cls(Verdict.MISSING if missing else Verdict.ERROR, None, failure, detail)


def _select(key: Key, headers: Headers) -> _Outcome:
    root, name = key
    if name not in headers:
        return _Outcome.failed(MissingKey, f"{root}.{name}")
    return _Outcome.of(cel.to_json(headers[name]))


_ABSENT: Final = object()
_memo: OrderedDict[tuple[object, ...], _Outcome] = OrderedDict()
