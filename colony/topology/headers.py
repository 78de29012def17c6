"""Headers: the sets of headers that can stand before the edges of a cell or a hive.

The sets are generated: the values a contract declares, the literals that edges compare with and
their neighbours, a value that no edge names, and the absence of every key that may be absent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from pydantic import JsonValue

from colony.errors import ExpressionError
from colony.topology.contracts import QUIET_HOP, QUIET_HOP_OPTIONAL, may_have_context
from colony.topology.draft import Draft, DraftEdge, is_quiet
from colony.topology.expressions import Expression, Key, Verdict
from colony.topology.model import FieldSpec, Modifier

# No more sets than this are generated for one cell: lint is quick before it is thorough.
MAX_SETS = 400
OTHER = "(another value)"

# What every cell type may add to an emission, above all where something failed.
IMPLICIT_HOP = frozenset(
    {"error_code", "finish_reason", "operation", "duration_ms", "exit_code", "had_stderr"}
)

_SAMPLES: Mapping[str, tuple[JsonValue, ...]] = {
    "string": (OTHER,),
    "boolean": (True, False),
    "array": ([],),
    "object": ({},),
}
Landmarks = Mapping[Key, tuple[JsonValue, ...]]


class _Absent:
    """The absence of a key."""


_ABSENT = _Absent()


@dataclass(frozen=True)
class Headers:
    """One set of headers."""

    context: Mapping[str, JsonValue]
    hop: Mapping[str, JsonValue]

    def satisfy(self, condition: Expression | None) -> bool:
        """Whether an edge with this condition takes an emission with these headers."""
        return condition is None or condition.condition(self.context, self.hop) is Verdict.TRUE

    def changed_by(self, modifier: Modifier | None) -> "Headers | None":
        """The headers after a modifier, or None where one of its expressions fails."""
        if modifier is None:
            return self
        context, hop = dict(self.context), dict(self.hop)
        try:
            for key, expression in modifier.set_context.items():
                context[key] = expression.value(self.context, self.hop)
            for key, expression in modifier.set_hop.items():
                hop[key] = expression.value(self.context, self.hop)
        except ExpressionError:
            return None
        for key in modifier.delete_context:
            context.pop(key, None)
        for key in modifier.delete_hop:
            hop.pop(key, None)
        return Headers(context, hop)

    def spelled(self, keys: Iterable[Key]) -> str:
        """The values of `keys` for a sentence."""
        parts = []
        for root, name in sorted(keys):
            values = self.hop if root == "hop" else self.context
            known = name in values
            parts.append(f"{root}.{name} {values[name]!r}" if known else f"no {root}.{name}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Declared:
    """What is known of a hop key where it leaves a sender.

    `values` are those that are known, `complete` says that there are no others, `optional` that it
    may be absent. `known` is False where the sender declares nothing at all.
    """

    values: tuple[JsonValue, ...] = ()
    complete: bool = False
    optional: bool = True
    known: bool = True


def declared_hop(draft: Draft, sender: str, key: str) -> Declared | None:
    """What the cell `sender` declares of `hop.key`, or None where it declares no such key."""
    if is_quiet(sender):
        if key == "route":
            return Declared(("quiet",), complete=True, optional=False)
        if key in QUIET_HOP | QUIET_HOP_OPTIONAL:
            return Declared(optional=key in QUIET_HOP_OPTIONAL)
        return None
    contract = draft.cells[sender].contract if sender in draft.cells else None
    if contract is None:
        return Declared(known=False)
    spec = contract.emits.hop.get(key)
    if spec is None:
        return Declared() if key in IMPLICIT_HOP | draft.cells[sender].emits else None
    return _of_field(spec)


def header_sets(
    draft: Draft,
    path: str,
    keys: frozenset[Key],
    landmarks: Landmarks,
    seen: frozenset[DraftEdge] = frozenset(),
) -> Iterator[Headers]:
    """Sets of headers, over `keys`, with which something can leave `path`."""
    if path in draft.hives and draft.into.get(path):
        return islice(_through_hive(draft, path, keys, landmarks, seen), MAX_SETS)
    return islice(_emitted(draft, path, keys, landmarks), MAX_SETS)


def reads_of(edges: Iterable[DraftEdge]) -> frozenset[Key]:
    """The keys that the conditions of `edges` read."""
    conditions = (edge.condition for edge in edges)
    return frozenset(key for condition in conditions if condition for key in condition.reads)


def landmarks_of(edges: Iterable[DraftEdge]) -> Landmarks:
    """The literals that the expressions of `edges` hold each key against."""
    found: dict[Key, dict[str, JsonValue]] = {}
    for edge in edges:
        for _, expression in edge.expressions():
            for key, literals in expression.landmarks.items():
                found.setdefault(key, {}).update((repr(value), value) for value in literals)
    return {key: tuple(values.values()) for key, values in found.items()}


def _emitted(
    draft: Draft, path: str, keys: frozenset[Key], landmarks: Landmarks
) -> Iterator[Headers]:
    ordered = sorted(keys)
    choices = [_choices(draft, path, key, landmarks.get(key, ())) for key in ordered]
    for values in product(*choices):
        context: dict[str, JsonValue] = {}
        hop: dict[str, JsonValue] = {}
        for (root, name), value in zip(ordered, values, strict=True):
            if not isinstance(value, _Absent):
                (hop if root == "hop" else context)[name] = value
        yield Headers(context, hop)


def _through_hive(
    draft: Draft,
    path: str,
    keys: frozenset[Key],
    landmarks: Landmarks,
    seen: frozenset[DraftEdge],
) -> Iterator[Headers]:
    for edge in draft.into[path]:
        if edge in seen or edge.compiled is None:
            continue
        read = frozenset(key for _, expression in edge.expressions() for key in expression.reads)
        needed = (keys - _overwritten(edge.modifier)) | read
        known = {**landmarks_of([edge]), **landmarks}
        for before in header_sets(draft, edge.source, needed, known, seen | {edge}):
            after = before.changed_by(edge.modifier) if before.satisfy(edge.condition) else None
            if after is not None:
                yield after


def _choices(
    draft: Draft, path: str, key: Key, landmarks: Sequence[JsonValue]
) -> list[JsonValue | _Absent]:
    root, name = key
    if root == "context":
        return _context_choices(draft, path, name, landmarks)
    declared = declared_hop(draft, path, name) or Declared()
    values = [*declared.values, *([] if declared.complete else _around(landmarks))]
    return [*_distinct(values), *([_ABSENT] if declared.optional or not values else [])]


def _context_choices(
    draft: Draft, path: str, name: str, landmarks: Sequence[JsonValue]
) -> list[JsonValue | _Absent]:
    literals, complete = literals_set(draft, name)
    if draft.is_store(path):
        # An origin that no edge out of the store compares is a finding of its own.
        literals = [value for value in literals if value in landmarks] or literals
    values = [*literals, *([] if complete else _around(landmarks))]
    absent = not may_have_context(draft, path, name)
    return [*_distinct(values), *([_ABSENT] if absent or not values else [])]


def literals_set(draft: Draft, name: str) -> tuple[list[JsonValue], bool]:
    """The literals that edges set `context.name` to, and whether edges set it to nothing else."""
    literals: list[JsonValue] = []
    complete = True
    for edge in draft.edges:
        expression = edge.modifier.set_context.get(name) if edge.modifier else None
        if expression is None:
            continue
        if expression.reads:
            complete = False
        else:
            literals.append(expression.value({}, {}))
    return literals, complete and bool(literals)


def _of_field(spec: FieldSpec) -> Declared:
    if spec.values is not None:
        return Declared(tuple(spec.values), complete=True, optional=not spec.required)
    samples = _SAMPLES.get(spec.type, ())
    return Declared(samples, complete=spec.type == "boolean", optional=not spec.required)


def _around(landmarks: Sequence[JsonValue]) -> list[JsonValue]:
    """The literals, what lies beside them, and a value that is none of them."""
    numbers = [value for value in landmarks if type(value) in (int, float)]
    beside = [value + step for value in numbers for step in (-1, 1)]  # type: ignore[operator]
    texts = [OTHER] if any(isinstance(value, str) for value in landmarks) else []
    return [*landmarks, *beside, *texts] or [0]


def _distinct(values: Iterable[JsonValue]) -> list[JsonValue]:
    return list({repr(value): value for value in values}.values())


def _overwritten(modifier: Modifier | None) -> frozenset[Key]:
    if modifier is None:
        return frozenset()
    names = [("context", name) for name in (*modifier.set_context, *modifier.delete_context)]
    names += [("hop", name) for name in (*modifier.set_hop, *modifier.delete_hop)]
    return frozenset(names)
