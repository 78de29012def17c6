"""Contracts: what an envelope lacks for a cell, and what an emission breaks."""

import json
from typing import Any

import pytest

from colony.body import Body
from colony.contract import broken_promises, unmet_needs
from colony.envelope import Emission, Envelope
from colony.topology.model import Contract

UUID = "0198c0de-0000-7000-8000-000000000000"


def contract(**groups: Any) -> Contract:
    written = {"version": "1", "settings": {}, "consumes": {}, **groups}
    return Contract.model_validate_json(json.dumps(written))


def envelope(**fields: Any) -> Envelope:
    return Envelope(
        **{
            "id": "m",
            "trace_id": "t",
            "target": "/a",
            "ttl": 1,
            "body": Body(messages=()),
            **fields,
        }
    )


def emission(*, body: Any = None, **hop: Any) -> Emission:
    return Emission(hop=hop, body=Body.parse(body or {"messages": []}))


def test_a_contract_that_names_nothing_is_met_by_everything() -> None:
    assert unmet_needs(envelope(hop={"extra": 1}), contract()) == []
    assert broken_promises(emission(extra=1), contract()) == []


@pytest.mark.parametrize("group", ["hop", "context"])
def test_a_required_key_that_is_missing_is_named(group: str) -> None:
    needs = contract(consumes={group: {"route": {"type": "string"}}})

    assert unmet_needs(envelope(), needs) == [f"{group}.route is missing"]
    assert unmet_needs(envelope(**{group: {"route": "x"}}), needs) == []


def test_a_required_slot_of_the_body_that_is_missing_is_named() -> None:
    needs = contract(consumes={"body": {"params": {"type": "object"}}})
    body = Body.parse({"messages": [], "params": {}})

    assert unmet_needs(envelope(), needs) == ["body.params is missing"]
    assert unmet_needs(envelope(body=body), needs) == []


def test_a_required_key_of_another_type_is_named() -> None:
    needs = contract(consumes={"hop": {"n": {"type": "number"}}})

    assert unmet_needs(envelope(hop={"n": "1"}), needs) == ["hop.n is not of type number"]


@pytest.mark.parametrize("hop", [{}, {"n": "1"}, {"n": 9}])
def test_an_optional_key_that_is_consumed_is_not_looked_at(hop: Any) -> None:
    spec = {"type": "int", "required": False, "values": [1]}

    assert unmet_needs(envelope(hop=hop), contract(consumes={"hop": {"n": spec}})) == []


def test_an_optional_key_that_is_emitted_may_be_absent_and_not_wrong() -> None:
    promise = contract(consumes={}, emits={"hop": {"n": {"type": "int", "required": False}}})

    assert broken_promises(emission(), promise) == []
    assert broken_promises(emission(n=1), promise) == []
    assert broken_promises(emission(n="1"), promise) == ["hop.n is not of type int"]


def test_a_value_beside_its_list_is_named() -> None:
    promise = contract(emits={"hop": {"route": {"type": "string", "values": ["a", "b"]}}})

    assert broken_promises(emission(route="a"), promise) == []
    assert broken_promises(emission(route="c"), promise) == [
        "hop.route is 'c', which is not among its values"
    ]


def test_everything_that_is_broken_is_named_at_once() -> None:
    promise = contract(
        emits={
            "hop": {"route": {"type": "string"}, "n": {"type": "int"}},
            "body": {"messages": {"type": "array"}, "meta": {"type": "object"}},
        }
    )

    assert broken_promises(emission(n=True, body={"messages": [], "meta": []}), promise) == [
        "hop.route is missing",
        "hop.n is not of type int",
        "body.meta is not of type object",
    ]


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("string", ["", "x"], [None, 1, [], {}]),
        ("number", [0, -1, 1.5, 2**60], [True, "1", None]),
        ("int", [0, -1, 2**60], [True, 1.0, "1", None]),
        ("boolean", [True, False], [0, 1, "true", None]),
        ("object", [{}, {"a": 1}], [[], "{}", None]),
        ("array", [[], [1]], [{}, "[]", None]),
        ("blob_uuid", [UUID], ["", "x", UUID[:-1], 7, None]),
    ],
)
def test_what_is_of_a_type(kind: str, right: list[Any], wrong: list[Any]) -> None:
    promise = contract(emits={"hop": {"k": {"type": kind}}})

    assert [value for value in right if broken_promises(emission(k=value), promise)] == []
    assert [value for value in wrong if not broken_promises(emission(k=value), promise)] == []
