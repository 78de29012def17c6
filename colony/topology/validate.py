"""Validation: what of a tree is broken, whatever its cells do."""

from collections.abc import Mapping
from dataclasses import replace

from colony.errors import ExpressionError
from colony.topology.contracts import check_contracts
from colony.topology.draft import Draft, DraftEdge, is_quiet, is_virtual
from colony.topology.expressions import Expression
from colony.topology.findings import DANGLING, Findings, Place
from colony.topology.model import Edge


def compile_edges(draft: Draft, findings: Findings) -> Draft:
    """The draft with every edge compiled whose expressions can be parsed."""
    return replace(draft, edges=tuple(_compiled(edge, findings) for edge in draft.edges))


def validate(draft: Draft, findings: Findings) -> None:
    """Add a finding for each edge and cell that cannot work as it is written."""
    for edge in draft.edges:
        _check_ends(edge, draft, findings)
        _check_restore(edge, findings)
    _check_wiring(draft, findings)
    check_contracts(draft, findings)


def _compiled(edge: DraftEdge, findings: Findings) -> DraftEdge:
    sound = [_parses(text, place, findings) for place, text in _expressions(edge).items()]
    return replace(edge, compiled=Edge.compile(edge.spec) if all(sound) else None)


def _expressions(edge: DraftEdge) -> Mapping[Place, str]:
    texts: dict[Place, str] = {}
    if edge.spec.condition is not None:
        texts[edge.place.at("condition")] = edge.spec.condition
    modifier = edge.spec.modifier
    for slot in ("set_context", "set_hop") if modifier else ():
        for key, text in getattr(modifier, slot).items():
            texts[edge.place.at("modifier", slot, key)] = text
    return texts


def _parses(text: str, place: Place, findings: Findings) -> bool:
    try:
        Expression.parse(text)
    except ExpressionError as error:
        sentence = f"The expression cannot be used: {error}."
        findings.error(place, error.code, sentence)
        return False
    return True


def _check_ends(edge: DraftEdge, draft: Draft, findings: Findings) -> None:
    if not draft.defines(edge.source) and not is_quiet(edge.source):
        sentence = f"There is no cell and no hive at {edge.source}, so the edge never fires."
        findings.warning(edge.place.at("from"), DANGLING, sentence)
    if is_virtual(edge.target):
        sentence = f"{edge.target} belongs to colony itself; no message can be sent there."
        findings.warning(edge.place.at("to"), DANGLING, sentence)
    elif not draft.defines(edge.target):
        sentence = f"There is no cell and no hive at {edge.target}, so what goes there is lost."
        findings.warning(edge.place.at("to"), DANGLING, sentence)


def _check_restore(edge: DraftEdge, findings: Findings) -> None:
    modifier = edge.spec.modifier
    if modifier is None or not modifier.restore_ttl:
        return
    place = edge.place.at("modifier", "restore_ttl")
    if edge.spec.condition is None:
        sentence = "An edge that restores the ttl needs a condition: nothing else bounds its loop."
        findings.error(place, "restore_unconditional", sentence)
    elif edge.compiled is not None and edge.spec.condition.strip(" ()") == "true":
        sentence = "The condition is always true, so nothing bounds the loop this edge restores."
        findings.warning(place, "restore_always", sentence)


def _check_wiring(draft: Draft, findings: Findings) -> None:
    touched = draft.into.keys() | draft.out_of.keys() | draft.doubtful
    for path, cell in draft.cells.items():
        if path not in touched:
            sentence = f"No edge touches {path}, so the cell is inactive."
            findings.warning(cell.place, "cell_unwired", sentence)
        offers = cell.spec.offers
        if offers is not None and offers not in draft.cells:
            sentence = f"There is no cell at {offers}, so no tool is offered."
            findings.error(cell.place.at("cell", "offers"), DANGLING, sentence)
