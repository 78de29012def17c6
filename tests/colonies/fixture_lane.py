"""The compaction lane with every edge written out, unguarded, as its model has it."""

from typing import Any

from colony.topology.load import load
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, ModifierSpec, TopologySpec
from colony.trees import shipped
from tests.colonies.cells import with_params

FULL = "int(context.tokens_seen) >= 40 && int(context.iter) >= 1"
SHORT = "int(context.tokens_seen) < 40 || int(context.iter) < 1"
COLLECTOR, PREP, CONDENSE, EMIT = (
    "/tool-loop/collector",
    "/compact/prep",
    "/compact/condense",
    "/compact/emit",
)
TO_STORE = {"store_origin": "'collector'"}
REFIRE = {**TO_STORE, "firing": "'1'", "compacting": "''"}

EDGES: list[tuple[str, str, str | None, dict[str, str]]] = [
    ("/capture", "/llm", "hop.route == 'ullm'", {"iter": "0", "tokens_seen": "0"}),
    (
        "/llm",
        "/tool-loop",
        "hop.finish_reason == 'tool_calls'",
        {"tokens_seen": "int(context.tokens_seen) + int(hop.tokens_prompt)"},
    ),
    (
        COLLECTOR,
        PREP,
        f"hop.route == 'fire' && {FULL}",
        {"tokens_seen": "0", "compacting": "'1'"},
    ),
    (
        COLLECTOR,
        "/llm",
        f"hop.route == 'fire' && ({SHORT})",
        {"iter": "int(context.iter) + 1", "firing": "''", "compacting": "''"},
    ),
    (PREP, CONDENSE, "hop.route == 'condense'", {"compact_upto": "hop.compact_upto"}),
    (PREP, "/store", "hop.route == 'refire'", REFIRE),
    (CONDENSE, EMIT, None, {}),
    (EMIT, "/store", "hop.route == 'write'", TO_STORE),
    (EMIT, "/store", "hop.route == 'refire'", REFIRE),
]


def fixture_lane(base_url: str) -> TopologySpec:
    """The bare tool loop with the lane, and a model server behind both of its llm cells."""
    asks = {"provider": "openai", "model": "m", "base_url": base_url, "attempts": 1}
    spec = load(shipped("tool-loop"), environment={}).publishable()
    spec = with_params(spec, "/llm", asks)
    edges = [_edge(*written) for written in EDGES]
    ends = {(edge.source, edge.target) for edge in edges}
    kept = [edge for edge in spec.edges if (edge.source, edge.target) not in ends]
    cells = [
        _cell(PREP, "code", {"handler": "workers.compaction.prep:prep"}),
        _cell(CONDENSE, "llm", asks),
        _cell(EMIT, "code", {"handler": "workers.compaction.emit:emit"}),
    ]
    update = {"edges": (*kept, *edges), "cells": (*spec.cells, *cells)}
    return spec.model_copy(update={**update, "hives": (*spec.hives, "/compact")})


def _cell(path: str, kind: str, params: dict[str, Any]) -> CellSpec:
    return CellSpec(path=path, cell=CellSettings(type=kind), params=params)


def _edge(source: str, target: str, condition: str | None, context: dict[str, str]) -> EdgeSpec:
    modifier = ModifierSpec(set_context=context) if context else None
    return EdgeSpec(source=source, target=target, condition=condition, modifier=modifier)
