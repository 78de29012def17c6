"""Origins under lint: store requests whose reply finds no way back.

An origin is a literal that an edge into a store puts into the context, so that the edges out of
the store can tell whose reply they have before them.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.topology.draft import Draft, DraftEdge
from colony.topology.expressions import Verdict
from colony.topology.findings import Findings


def lint_origins(draft: Draft, findings: Findings) -> None:
    """Add a warning for each origin that no edge out of its store takes."""
    reported: set[tuple[str, str, str]] = set()
    for edge in draft.edges:
        if not draft.is_store(edge.target) or edge.target in draft.doubtful:
            continue
        origins, out = _literals_of(edge), draft.out_of.get(edge.target, ())
        if not origins or any(_may_take(reply, origins) for reply in out):
            continue
        key = _origin_key(origins, out)
        name = (edge.target, key, repr(origins[key]))
        if name not in reported:
            reported.add(name)
            sentence = (
                f"No edge out of {edge.target} takes a reply with context.{key} {origins[key]!r}."
            )
            place = edge.place.at("modifier", "set_context", key)
            findings.warning(place, "origin_unreturned", sentence)


def _literals_of(edge: DraftEdge) -> Mapping[str, JsonValue]:
    values = edge.modifier.set_context.items() if edge.modifier else ()
    return {
        key: expression.value({}, {})
        for key, expression in values
        if not expression.reads and not expression.undeclared
    }


def _may_take(reply: DraftEdge, origins: Mapping[str, JsonValue]) -> bool:
    condition = reply.condition
    if condition is None or condition.undeclared:
        return True
    if all(root == "context" and name in origins for root, name in condition.reads):
        return condition.condition(origins, {}) is Verdict.TRUE
    return all(
        name not in origins or root == "hop" or origins[name] in literals
        for (root, name), literals in condition.comparisons.items()
    )


def _origin_key(origins: Mapping[str, JsonValue], out: tuple[DraftEdge, ...]) -> str:
    """The origin that the edges out of the store tell replies apart by."""
    compared = {name for reply in out if reply.condition for _, name in reply.condition.reads}
    return next((key for key in origins if key in compared), next(iter(origins)))
