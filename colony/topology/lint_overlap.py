"""Overlaps under lint: a catch-all that also takes what another edge of its cell is there for.

A catch-all is an edge that excludes, by name, what its siblings take. Whoever adds a sibling and
leaves the catch-all as it is has two edges fire for the new name.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations

from pydantic import JsonValue

from colony.topology.draft import Draft, DraftEdge
from colony.topology.expressions import WHOLE, Expression, Key
from colony.topology.findings import Findings
from colony.topology.headers import header_sets, landmarks_of, reads_of


def lint_overlap(draft: Draft, findings: Findings) -> None:
    """Add a warning for each literal that both an edge and the catch-all beside it take."""
    for path, edges in draft.out_of.items():
        if path in draft.doubtful:
            continue
        for catch_all, edge in permutations(edges, 2):
            if edge.target == catch_all.target:
                continue
            for (root, name), value in _both_take(draft, edge, catch_all, edges):
                sentence = (
                    f"An emission of {path} with {root}.{name} {value!r} goes to {edge.target} "
                    f"and also to {catch_all.target}, whose condition does not exclude it."
                )
                findings.warning(catch_all.place.at("condition"), "lane_overlap", sentence)


def _both_take(
    draft: Draft, edge: DraftEdge, catch_all: DraftEdge, siblings: Sequence[DraftEdge]
) -> Iterator[tuple[Key, JsonValue]]:
    takes, refuses = _sound(edge), _sound(catch_all)
    if takes is None or refuses is None:
        return
    for key, excluded in refuses.exclusions.items():
        named = [value for value in takes.comparisons.get(key, ()) if value not in excluded]
        if named and _complements(key, excluded, siblings):
            together = _values_of(draft, key, edge, catch_all)
            yield from ((key, value) for value in named if repr(value) in together)


def _sound(edge: DraftEdge) -> Expression | None:
    condition = edge.condition
    if condition is None or condition.undeclared:
        return None
    return None if any(name == WHOLE for _, name in condition.reads) else condition


def _complements(key: Key, excluded: Sequence[JsonValue], siblings: Sequence[DraftEdge]) -> bool:
    """Whether what is excluded is what a sibling takes, so that the edge is for all the rest."""
    taken = (edge.condition.comparisons.get(key, ()) for edge in siblings if edge.condition)
    return any(value in excluded for values in taken for value in values)


def _values_of(draft: Draft, key: Key, edge: DraftEdge, catch_all: DraftEdge) -> frozenset[str]:
    """The values of `key`, spelled, with which something can leave that both edges take."""
    both = (edge, catch_all)
    root, name = key
    found = set()
    for headers in header_sets(draft, edge.source, reads_of(both), landmarks_of(both)):
        if all(headers.satisfy(one.condition) for one in both):
            values = headers.hop if root == "hop" else headers.context
            found.add(repr(values.get(name)))
    return frozenset(found)
