"""Lanes under lint: emissions that none of a cell's edges takes.

A lane is what the edges of one cell make of a key they all compare. Emissions are generated, and
one that every edge refuses is a dead letter waiting for its day.
"""

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from colony.topology.draft import Draft, DraftCell, DraftEdge, is_quiet
from colony.topology.expressions import WHOLE, Expression, Key, Verdict
from colony.topology.findings import Findings
from colony.topology.headers import header_sets, landmarks_of, reads_of
from colony.topology.lint_edges import is_declared

_ROUTE: Key = ("hop", "route")


def lint_lanes(draft: Draft, findings: Findings) -> None:
    """Add a warning for each declared route and each lane that leads nowhere."""
    for path in dict.fromkeys((*draft.cells, *draft.out_of)):
        edges = draft.out_of.get(path, ())
        if is_quiet(path) or path in draft.doubtful or not all(map(_is_sound, edges)):
            continue
        untaken = _untaken_routes(draft.cells[path], edges) if path in draft.cells else []
        for at, value in untaken:
            sentence = f"{path} declares hop.route {value!r}, and no edge takes it."
            place = draft.cells[path].place.at("contract", "emits", "hop", "route", "values", at)
            findings.warning(place, "route_untaken", sentence)
        if edges:
            _check_lane(draft, path, edges, [value for _, value in untaken], findings)


def _is_sound(edge: DraftEdge) -> bool:
    return edge.compiled is not None and not (edge.condition and edge.condition.undeclared)


def _untaken_routes(cell: DraftCell, edges: Sequence[DraftEdge]) -> list[tuple[int, JsonValue]]:
    declared = cell.contract.emits.hop.get("route") if cell.contract else None
    return [
        (at, value)
        for at, value in enumerate((declared and declared.values) or ())
        if not any(_may_take(edge.condition, value) for edge in edges)
    ]


def _may_take(condition: Expression | None, route: JsonValue) -> bool:
    if condition is None or _ROUTE not in condition.reads:
        return True
    if condition.reads == {_ROUTE}:
        return condition.condition({}, {"route": route}) is Verdict.TRUE
    return _ROUTE not in condition.comparisons or route in condition.comparisons[_ROUTE]


def _check_lane(
    draft: Draft,
    path: str,
    edges: Sequence[DraftEdge],
    untaken: Sequence[JsonValue],
    findings: Findings,
) -> None:
    keys = reads_of(edges)
    if any(edge.condition is None for edge in edges) or not _all_known(draft, path, keys):
        return
    for headers in header_sets(draft, path, keys, landmarks_of(edges)):
        untaken_already = "route" in headers.hop and headers.hop["route"] in untaken
        if untaken_already or any(headers.satisfy(edge.condition) for edge in edges):
            continue
        sentence = f"No edge from {path} takes an emission with {headers.spelled(keys)}."
        findings.warning(edges[0].place.at("condition"), "lane_open", sentence)
        return


def _all_known(draft: Draft, path: str, keys: Iterable[Key]) -> bool:
    """Whether emissions can be generated for `keys`; an undeclared one has its own finding."""
    return all(
        name != WHOLE and (root == "context" or is_declared(draft, path, name))
        for root, name in keys
    )
