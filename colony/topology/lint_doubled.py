"""Doubled edges under lint: two edges between the same ends that both take an emission.

What they lead to is done twice. So it comes when a lane is laid into a tree, and the edge in whose
place it stands is left.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from colony.topology.draft import Draft, DraftEdge
from colony.topology.expressions import WHOLE, Key, Keys
from colony.topology.findings import Findings
from colony.topology.headers import Headers, header_sets, landmarks_of, reads_of


def lint_doubled(draft: Draft, findings: Findings) -> None:
    """Add a warning for each edge beside which a later one between the same ends may be taken."""
    for path, edges in draft.out_of.items():
        if path in draft.doubtful or not all(edge.compiled for edge in edges):
            continue
        for at, first in enumerate(edges):
            pairs = ((second, _both_take(draft, first, second)) for second in edges[at + 1 :])
            second, headers = next((pair for pair in pairs if pair[1]), (None, None))
            if second is None or headers is None:
                continue
            keys = reads_of([first])
            what = f" with {headers.spelled(keys)}" if keys else ""
            sentence = (
                f"An emission of {path}{what} goes to {first.target} twice: "
                f"{second.place.file} {second.place.json_path} takes it as well."
            )
            findings.warning(first.place.at("to"), "edge_doubled", sentence)


def _both_take(draft: Draft, first: DraftEdge, second: DraftEdge) -> Headers | None:
    """Headers with which something can leave that both edges take to the same place.

    Edges that look at different keys may exclude each other by what their sender knows: nothing is
    concluded of them.
    """
    both = (first, second)
    reads = [reads_of([edge]) for edge in both]
    comparable = reads[0] <= reads[1] or reads[1] <= reads[0]
    if first.target != second.target or not comparable or not _sound(both, reads_of(both)):
        return None
    if _apart(_named(first), _named(second)):
        return None
    sets = header_sets(draft, first.source, reads_of(both), landmarks_of(both))
    taken = (found for found in sets if all(found.satisfy(edge.condition) for edge in both))
    return next(taken, None)


def _sound(edges: Sequence[DraftEdge], reads: Keys) -> bool:
    conditions = (edge.condition for edge in edges if edge.condition)
    return not any(found.undeclared for found in conditions) and all(
        name != WHOLE for _, name in reads
    )


def _named(edge: DraftEdge) -> Mapping[Key, Sequence[JsonValue]]:
    return edge.condition.comparisons if edge.condition else {}


def _apart(
    one: Mapping[Key, Sequence[JsonValue]], other: Mapping[Key, Sequence[JsonValue]]
) -> bool:
    """Whether the two need different values of some key, which costs less to see."""
    return any(
        all(value not in other[key] for value in values)
        for key, values in one.items()
        if key in other
    )
