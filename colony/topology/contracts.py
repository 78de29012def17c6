"""Contracts: whether the headers a cell needs can reach it over the edges that lead to it."""

from colony.topology.draft import Draft, DraftCell, DraftEdge, is_quiet
from colony.topology.findings import Findings
from colony.topology.model import Emits, FieldSpec

QUIET_HOP = frozenset({"route", "entry", "outputs"})
QUIET_HOP_OPTIONAL = frozenset({"error_code", "dead_target", "dead_message_id"})

# What an unknown sender provides: nothing can be said against it.
_ANYTHING = None


def check_contracts(draft: Draft, findings: Findings) -> None:
    """Add a finding for each header key that is required and not provided (meclaw, locality)."""
    for cell in draft.cells.values():
        if cell.contract is None:
            continue
        for key in _required(cell.contract.consumes.hop):
            _check_hop(cell, key, draft, findings)
        for key in _required(cell.contract.consumes.context):
            if not may_have_context(draft, cell.spec.path, key):
                sentence = (
                    f"{cell.spec.path} needs context.{key}, and no edge on any way to it sets it."
                )
                place = cell.place.at("contract", "consumes", "context", key)
                findings.error(place, "header_contract", sentence)
                continue
            entry = _entry_leaving_open(draft, cell.spec.path, key)
            if entry is not None:
                sentence = (
                    f"{cell.spec.path} needs context.{key}; on a way from {entry} no edge sets it, "
                    "so it is there only if the caller brings it."
                )
                place = cell.place.at("contract", "consumes", "context", key)
                findings.warning(place, "header_contract", sentence)
        _check_emitted_types(cell, findings)


def may_have_context(draft: Draft, path: str, key: str) -> bool:
    """Whether on some way to `path` an edge sets `context.key`, or an entry expects it at birth."""
    seen, ahead = {path}, [path]
    while ahead:
        node = ahead.pop()
        if node in draft.doubtful or _expects(draft, node, key):
            return True
        for edge in draft.into.get(node, ()):
            modifier = edge.spec.modifier
            if modifier and key in modifier.delete_context:
                continue
            if is_quiet(edge.source) or (modifier and key in modifier.set_context):
                return True
            if edge.source not in seen:
                seen.add(edge.source)
                ahead.append(edge.source)
    return False


def _entry_leaving_open(draft: Draft, path: str, key: str) -> str | None:
    """An entry that may get `context.key` and need not, where no edge sets it on a way to `path`.

    What requires the key itself is never passed without it.
    """
    seen, ahead = {path}, [path]
    while ahead:
        node = ahead.pop()
        if node != path and (node in draft.doubtful or _requires(draft, node, key)):
            continue
        if node != path and _expects(draft, node, key):
            return node
        for edge in draft.into.get(node, ()):
            modifier = edge.spec.modifier
            changed = modifier and key in {*modifier.set_context, *modifier.delete_context}
            if not changed and edge.source not in seen:
                seen.add(edge.source)
                ahead.append(edge.source)
    return None


def provided_hop(
    draft: Draft, edge: DraftEdge, seen: frozenset[DraftEdge] = frozenset()
) -> frozenset[str] | None:
    """The hop keys that surely arrive over `edge`, or None where the sender declares nothing."""
    emitted = _emitted_hop(draft, edge.source, seen | {edge})
    if emitted is _ANYTHING:
        return _ANYTHING
    modifier = edge.spec.modifier
    if modifier is None:
        return emitted
    return (emitted | modifier.set_hop.keys()) - set(modifier.delete_hop)


def _emitted_hop(draft: Draft, path: str, seen: frozenset[DraftEdge]) -> frozenset[str] | None:
    if is_quiet(path):
        return QUIET_HOP
    if path in draft.hives:
        return _hive_hop(draft, path, seen)
    contract = draft.cells[path].contract if path in draft.cells else None
    return frozenset(_required(contract.emits.hop)) if contract else _ANYTHING


def _hive_hop(draft: Draft, path: str, seen: frozenset[DraftEdge]) -> frozenset[str] | None:
    result: frozenset[str] | None = _ANYTHING
    for edge in draft.into.get(path, ()):
        if edge in seen:
            continue
        arriving = provided_hop(draft, edge, seen)
        if arriving is not _ANYTHING:
            result = arriving if result is _ANYTHING else result & arriving
    return result


def _check_hop(cell: DraftCell, key: str, draft: Draft, findings: Findings) -> None:
    path = cell.spec.path
    place = cell.place.at("contract", "consumes", "hop", key)
    incoming = draft.into.get(path, ())
    if not incoming and path not in draft.doubtful:
        sentence = f"{path} needs hop.{key}, and no edge leads to it."
        findings.error(place, "header_contract", sentence)
    for edge in incoming:
        provided = provided_hop(draft, edge)
        if provided is not _ANYTHING and key not in provided:
            sentence = (
                f"{path} needs hop.{key}, which the edge from {edge.source} does not provide."
            )
            findings.error(place, "header_contract", sentence)


def _check_emitted_types(cell: DraftCell, findings: Findings) -> None:
    emits = cell.contract.emits if cell.contract else Emits()
    for slot, fields in (("body", emits.body), ("hop", emits.hop)):
        for key, spec in fields.items():
            if spec.type == "int":
                place = cell.place.at("contract", "emits", slot, key, "type")
                sentence = "'int' is no type of an emitted key; write 'number'."
                findings.error(place, "invalid_value", sentence)


def _expects(draft: Draft, path: str, key: str) -> bool:
    contract = draft.cells[path].contract if path in draft.cells else None
    return contract is not None and key in contract.ingress.context


def _requires(draft: Draft, path: str, key: str) -> bool:
    contract = draft.cells[path].contract if path in draft.cells else None
    return contract is not None and key in _required(contract.consumes.context)


def _required(fields: dict[str, FieldSpec]) -> list[str]:
    return [key for key, spec in fields.items() if spec.required]
