"""The topology as it is published and as a router reads it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from colony.errors import ExpressionError
from colony.topology.model import (
    ColonySettings,
    Contract,
    Edge,
    EdgeSpec,
    ModifierSpec,
    Topology,
    TopologySpec,
    parse_spec,
)

FULL: dict[str, Any] = {
    "settings": {"message_default_ttl": 128, "ttl_notice": True},
    "hives": ["/", "/loop"],
    "cells": [
        {"path": "/a", "cell": {"type": "code", "message_timeout": 1500}, "params": {"x": [1, {}]}},
        {
            "path": "/loop/b",
            "cell": {"type": "store", "isolation": "process"},
            "contract": {
                "version": "1",
                "settings": {},
                "consumes": {"hop": {"route": {"type": "string", "values": ["x"]}}},
                "emits": {"hop": {"n": {"type": "int", "required": False}}},
                "ingress": {"context": ["turn_id"]},
                "tool": {"name": "b", "description": "b", "parameters": {"type": "object"}},
            },
            "files": {"script.py": "print('é')\n"},
        },
    ],
    "edges": [
        {"from": "/a", "to": "/loop", "condition": "hop.n < 3"},
        {
            "from": "/loop",
            "to": "/loop/b",
            "condition": "true",
            "modifier": {"set_hop": {"k": "1"}, "delete_context": ["x"], "restore_ttl": True},
        },
    ],
}


def spec(**fields: Any) -> TopologySpec:
    return TopologySpec.model_validate_json(json.dumps({**FULL, **fields}))


def edge(**fields: Any) -> EdgeSpec:
    return EdgeSpec.model_validate_json(json.dumps({"from": "/a", "to": "/b", **fields}))


def test_a_tree_is_read_as_it_was_published() -> None:
    published = json.dumps(spec().to_json())

    assert parse_spec(published) == spec()
    assert parse_spec(published.encode()).digest() == spec().digest()
    assert parse_spec(published).to_json() == FULL


def test_a_tree_of_nothing_but_defaults_is_read_as_it_was_published() -> None:
    assert parse_spec(json.dumps(TopologySpec().to_json())) == TopologySpec()


def test_another_tree_has_another_digest() -> None:
    others = [
        spec(),
        spec(settings={}),
        spec(cells=FULL["cells"][:1]),
        spec(edges=FULL["edges"][::-1]),
        spec(hives=["/", "/loop", "/x"]),
    ]

    assert len({other.digest() for other in others}) == len(others)


@pytest.mark.parametrize(
    "fields", [{"hives": ["/", "/"]}, {"hives": ["/", "/a"]}, {"cells": FULL["cells"][:1] * 2}]
)
def test_two_nodes_at_one_path_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="same path"):
        spec(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"conditon": "true"},
        {"condition": 1},
        {"modifier": {"set_hops": {}}},
        {"modifier": {"set_hop": {"k": 1}}},
        {"modifier": {"restore_ttl": "yes"}},
        {"modifier": {"restore_ttl": 1}},
        {"modifier": {"delete_hop": "k"}},
        {"to": None},
    ],
)
def test_an_edge_is_a_closed_object_with_strict_types(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        edge(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"condition": "hop.x =="},
        {"condition": ""},
        {"modifier": {"set_context": {"k": "1 +"}}},
        {"modifier": {"set_hop": {"k": ")"}}},
    ],
)
def test_a_broken_expression_is_found_when_the_edge_is_compiled(fields: dict[str, Any]) -> None:
    with pytest.raises(ExpressionError):
        Edge.compile(edge(**fields))


def test_what_makes_an_edge_the_same_edge() -> None:
    def identity(**fields: Any) -> str:
        return Edge.compile(edge(**fields)).digest

    plain = identity()
    assert identity(modifier=None) == identity(modifier={}) == plain
    assert identity(condition=None, modifier={"restore_ttl": False, "set_hop": {}}) == plain
    two = {"set_hop": {"a": "1", "b": "2"}}
    assert identity(modifier=two) == identity(modifier={"set_hop": {"b": "2", "a": "1"}})
    others = [
        plain,
        identity(to="/c"),
        identity(**{"from": "/c"}),
        identity(condition="true"),
        identity(condition="true "),
        identity(modifier=two),
        identity(modifier={"set_context": {"a": "1", "b": "2"}}),
        identity(modifier={"restore_ttl": True}),
        identity(modifier={"delete_hop": ["a"]}),
    ]
    assert len(set(others)) == len(others)


def test_a_compiled_tree_answers_what_a_router_asks() -> None:
    topology = Topology.compile(spec(), version=7)

    assert (topology.version, topology.digest) == (7, spec().digest())
    assert topology.cells.keys() == {"/a", "/loop/b"}
    assert topology.hives == {"/", "/loop"}
    assert topology.active == {"/a", "/loop/b"}
    assert [edge.spec.target for edge in topology.edges_from("/a")] == ["/loop"]
    assert topology.edges_from("/nowhere") == ()
    assert topology.settings.message_default_ttl == 128


def test_edges_leave_a_place_in_file_order() -> None:
    conditions = [f"hop.n == {number}" for number in (3, 1, 2, 1)]
    written = [{"from": "/a", "to": "/loop", "condition": text} for text in conditions]
    topology = Topology.compile(spec(edges=written))

    assert [edge.spec.condition for edge in topology.edges_from("/a")] == conditions[:3]


def test_a_cell_has_its_own_timeout_or_that_of_the_tree() -> None:
    topology = Topology.compile(spec(settings={"message_timeout_default_ms": 9}))

    assert topology.message_timeout_ms("/a") == 1500
    assert topology.message_timeout_ms("/loop/b") == 9
    assert topology.message_timeout_ms("/gone") == 9


@pytest.mark.parametrize("lacking", ["version", "settings", "consumes"])
def test_a_contract_that_is_there_is_complete(lacking: str) -> None:
    whole = {"version": "1", "settings": {}, "consumes": {}}
    Contract.model_validate(whole)

    with pytest.raises(ValidationError):
        Contract.model_validate({key: whole[key] for key in whole if key != lacking})


def test_an_empty_modifier_is_canonically_nothing() -> None:
    assert ModifierSpec().canonical() == {}


def test_the_defaults_of_a_tree() -> None:
    defaults = ColonySettings()

    assert (defaults.message_default_ttl, defaults.ttl_notice) == (64, False)
    assert (defaults.message_timeout_default_ms, defaults.max_deliveries) == (60_000, 5)
    assert (defaults.blob_inline_max_bytes, defaults.blob_max_recursion_depth) == (65_536, 64)
    assert (defaults.quiet_revivals, defaults.trace_bodies) == (3, "excerpt")
