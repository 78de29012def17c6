"""Edges under lint: expressions that say something else than they seem to."""

from colony.topology.contracts import may_have_context
from colony.topology.draft import Draft, DraftEdge
from colony.topology.expressions import WHOLE, Expression, Key
from colony.topology.findings import Findings, Place
from colony.topology.headers import declared_hop

# Error codes of cells that are named otherwise here than in trees written for meclaw.
RENAMED = {"rate_limit": "rate_limited"}


def lint_edges(draft: Draft, findings: Findings) -> None:
    """Add a warning for each expression that cannot do what it seems to."""
    for edge in draft.edges:
        for place, expression in edge.expressions():
            if not _check_names(place, expression, findings):
                continue
            for key in sorted(expression.reads):
                _check_declared(draft, edge, key, place, findings)
            _check_renamed(place, expression, findings)
        for place, expression in edge.modifier_expressions():
            _check_guards(draft, edge, place, expression, findings)


def _check_names(place: Place, expression: Expression, findings: Findings) -> bool:
    """Whether every name of the expression exists."""
    for text in expression.subtractions:
        key = text.split("-")[0]
        sentence = (
            f"{text} subtracts a name from {key}; a key with a minus is read as {_indexed(text)}."
        )
        findings.warning(place, "hop_subtraction", sentence)
    if expression.undeclared and not expression.subtractions:
        names = ", ".join(sorted(expression.undeclared))
        sentence = f"There is no {names}; an expression reads context and hop."
        findings.warning(place, "undeclared_name", sentence)
    return not expression.undeclared


def _check_declared(
    draft: Draft, edge: DraftEdge, key: Key, place: Place, findings: Findings
) -> None:
    root, name = key
    if root != "hop" or name == WHOLE or is_declared(draft, edge.source, name):
        return
    sentence = f"The edge reads hop.{name}, which {edge.source} does not declare to emit."
    findings.warning(place, "hop_undeclared", sentence)


def is_declared(draft: Draft, path: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether `hop.name` may leave `path`: a sender declares it, or nothing is known of one."""
    if path in draft.doubtful or path in seen:
        return path in draft.doubtful
    if path not in draft.hives:
        return declared_hop(draft, path, name) is not None
    incoming = draft.into.get(path, ())
    return not incoming or any(
        (edge.spec.modifier is not None and name in edge.spec.modifier.set_hop)
        or is_declared(draft, edge.source, name, seen | {path})
        for edge in incoming
    )


def _check_renamed(place: Place, expression: Expression, findings: Findings) -> None:
    for (_, name), literals in expression.landmarks.items():
        for literal in literals:
            if name == "error_code" and literal in RENAMED:
                sentence = f"No cell answers {literal!r}; the code is {RENAMED[str(literal)]!r}."
                findings.warning(place, "error_code_renamed", sentence)


def _check_guards(
    draft: Draft, edge: DraftEdge, place: Place, expression: Expression, findings: Findings
) -> None:
    if expression.undeclared:
        return
    guaranteed = edge.condition.guarantees if edge.condition else frozenset()
    for root, name in sorted(expression.unguarded_reads - guaranteed):
        if name != WHOLE and _may_be_absent(draft, edge.source, root, name):
            sentence = (
                f"{root}.{name} may be absent; then the whole edge is skipped. Guard it with has()."
            )
            findings.warning(place, "modifier_unguarded", sentence)


def _may_be_absent(draft: Draft, source: str, root: str, name: str) -> bool:
    if root == "context":
        return not may_have_context(draft, source, name)
    if source in draft.hives:
        return any(_arrives_without(draft, edge, name) for edge in draft.into.get(source, ()))
    declared = declared_hop(draft, source, name)
    return declared is not None and declared.known and declared.optional


def _arrives_without(draft: Draft, edge: DraftEdge, name: str) -> bool:
    """Whether an envelope may take `edge` into a hive without `hop.name`."""
    if edge.spec.modifier and name in edge.spec.modifier.set_hop:
        return False
    if edge.condition is not None and ("hop", name) in edge.condition.guarantees:
        return False
    return edge.source not in draft.hives and _may_be_absent(draft, edge.source, "hop", name)


def _indexed(text: str) -> str:
    root, name = text.split(".", 1)
    return f"{root}['{name}']"
