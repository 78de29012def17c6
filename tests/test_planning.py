"""Planning: envelopes, records and letters of a routing, and what is logged of it."""

import json
import logging
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.codec import (
    blob_reference,
    decode_body,
    decode_head,
    encode_blob_reference,
    encode_body,
)
from colony.envelope import Head
from colony.errors import EnvelopeError
from colony.keys import Keys
from colony.planning import Plan, plan
from colony.records import HopRecord, read_record
from colony.routing import route
from colony.topology.model import Topology, TopologySpec

BODY = encode_body(Body.of(Entry.say("user", "hello " * 100)))


def tree(*edges: dict[str, Any], cells: str, hives: str = "/", **settings: Any) -> Topology:
    written = {
        "cells": [{"path": path, "cell": {"type": "code"}} for path in cells.split()],
        "hives": hives.split(),
        "edges": edges,
        "settings": settings,
    }
    return Topology.compile(TopologySpec.model_validate_json(json.dumps(written)))


def head(**fields: Any) -> Head:
    return Head(
        **{"id": "m-1", "trace_id": "t-1", "target": None, "ttl": 9, "sender": "/a", **fields}
    )


def planned(head: Head, topology: Topology, body: bytes = BODY) -> Plan:
    return plan(route(head, topology), body, Keys("test"), topology.settings)


def records(made: Plan) -> list[HopRecord]:
    return [read_record(b"1-0", data) for data in made.records]


FAN_OUT = tree(
    {"from": "/a", "to": "/b", "condition": "hop.n == 1"},
    {"from": "/a", "to": "/hive"},
    {"from": "/hive", "to": "/c"},
    cells="/a /b /c",
    hives="/ /hive",
)


def test_each_arrival_is_published_on_the_stream_of_its_cell() -> None:
    made = planned(head(hop={"n": 1}), FAN_OUT)

    assert [out.stream for out in made.published] == [
        Keys("test").cell("/b"),
        Keys("test").cell("/c"),
    ]
    assert [decode_head(out.head).target for out in made.published] == ["/b", "/c"]
    assert [out.body for out in made.published] == [BODY, BODY]
    assert made.letters == []


def test_each_leg_is_recorded_with_its_ends_edge_and_ttl() -> None:
    made = records(planned(head(hop={"n": 1}), FAN_OUT))

    assert [(r.head.sender, r.head.target, r.head.ttl, r.condition) for r in made] == [
        ("/a", "/hive", 8, None),
        ("/a", "/b", 8, "hop.n == 1"),
        ("/hive", "/c", 7, None),
    ]
    assert {r.head.id for r in made[1:]} == {
        decode_head(out.head).id for out in planned(head(hop={"n": 1}), FAN_OUT).published
    }


@pytest.mark.parametrize(
    ("bodies", "kept"),
    [("none", None), ("excerpt", ("hello " * 100)[:200] + "…"), ("full", "hello " * 100)],
)
def test_a_record_keeps_of_the_body_what_the_tree_says(bodies: Any, kept: str | None) -> None:
    topology = tree({"from": "/a", "to": "/b"}, cells="/a /b", trace_bodies=bodies)
    (record,) = records(planned(head(), topology))

    assert record.body == (
        kept and {"messages": [{"origin": "user", "type": "text", "text": kept}]}
    )


def test_a_body_behind_a_reference_travels_and_is_recorded_as_one() -> None:
    topology = tree({"from": "/a", "to": "/b"}, cells="/a /b")
    made = planned(head(), topology, encode_blob_reference("blob-1"))

    assert blob_reference(made.published[0].body) == "blob-1"
    assert records(made)[0].body == {"blob_id": "blob-1"}


def test_a_body_whose_bytes_are_broken_is_an_envelope_error() -> None:
    topology = tree({"from": "/a", "to": "/b"}, cells="/a /b")

    with pytest.raises(EnvelopeError):
        planned(head(), topology, b"\xd4")


def test_no_route_leaves_one_letter_with_the_whole_envelope_and_its_edges() -> None:
    topology = tree({"from": "/a", "to": "/b", "condition": "hop.n == 1"}, cells="/a /b")
    stuck = head(reply_to="/a", hop={"n": 2})
    made = planned(stuck, topology)

    assert (made.published, made.records) == ([], [])
    (letter,) = made.letters
    assert (letter.code, letter.sender) == ("no_route", "/a")
    assert (letter.original_target, letter.resolved_target) == ("/a", "/a")
    assert (letter.head, letter.body) == (stuck, BODY)
    assert letter.edges == ({"to": "/b", "condition": "hop.n == 1", "verdict": "false"},)


FAILED = encode_body(Body.of(Entry.result("c-1", "ValueError: no such thing", is_error=True)))
TIMED_OUT = encode_body(Body.of(Entry.result("c-1", "timeout: took too long", is_error=True)))


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (FAILED, "script_failed", "script_failed: ValueError: no such thing"),
        (TIMED_OUT, "timeout", "timeout: took too long"),
        (encode_blob_reference("blob-1"), "timeout", "timeout"),
        (encode_body(Body(system={"x": 1})), "timeout", "timeout"),
    ],
)
def test_an_error_that_no_edge_takes_is_named_by_its_letter_and_its_line(
    body: bytes, code: str, told: str, lines: pytest.LogCaptureFixture
) -> None:
    topology = tree({"from": "/a", "to": "/b", "condition": "has(hop.route)"}, cells="/a /b")

    (letter,) = planned(head(hop={"error_code": code}), topology, body).letters

    assert letter.code == "no_route"
    assert letter.detail == f"no edge out of /a takes this emission, which is an error: {told}"
    assert told in lines.text


def test_an_error_that_no_edge_takes_out_of_a_hive_is_named() -> None:
    topology = tree({"from": "/a", "to": "/hive"}, cells="/a", hives="/ /hive")

    (letter,) = planned(head(hop={"error_code": "script_failed"}), topology, FAILED).letters

    assert letter.code == "hive_no_route"
    assert letter.detail.endswith("an error: script_failed: ValueError: no such thing")


def test_what_no_trace_may_keep_is_in_no_letter_s_detail() -> None:
    topology = tree(cells="/a")
    quiet = topology.settings.model_copy(update={"trace_bodies": "none"})
    stuck = head(hop={"error_code": "script_failed"})

    (letter,) = plan(route(stuck, topology), FAILED, Keys("test"), quiet).letters

    assert letter.detail.endswith("which is an error: script_failed")


def test_an_unresolved_target_leaves_a_letter_and_a_reply_with_a_body_of_its_own() -> None:
    topology = tree({"from": "/a", "to": "/gone"}, cells="/a")
    made = planned(head(reply_to="/a"), topology)

    (letter,) = made.letters
    assert (letter.code, letter.original_target, letter.body) == ("unresolved_path", "/gone", BODY)
    (reply,) = made.published
    assert reply.stream == Keys("test").cell("/a")
    text = decode_body(reply.body).last("assistant")
    assert text is not None
    assert text.text == "A message to /gone could not be delivered: unresolved_path."
    (record,) = records(made)
    assert record.body == decode_body(reply.body).model_dump(mode="json", exclude_unset=True)


def test_the_letter_of_a_reply_keeps_the_body_of_the_reply() -> None:
    topology = tree({"from": "/a", "to": "/gone"}, cells="/a")
    made = planned(head(reply_to="/away"), topology)

    assert [letter.original_target for letter in made.letters] == ["/gone", "/away"]
    assert made.letters[0].body == BODY
    assert b"could not be delivered" in made.letters[1].body


def test_a_reply_is_recorded_with_its_own_body_where_it_passes_a_hive() -> None:
    topology = tree(
        {"from": "/a", "to": "/gone"},
        {"from": "/hive", "to": "/a"},
        cells="/a",
        hives="/ /hive",
    )
    made = planned(head(reply_to="/hive"), topology)

    assert [record.head.target for record in records(made)] == ["/hive", "/a"]
    assert ["could not be delivered" in str(record.body) for record in records(made)] == [
        True,
        True,
    ]


def test_headers_that_edges_made_too_large_leave_a_letter_that_keeps_them() -> None:
    double = {"set_context": {"k": "context.k + context.k"}}
    topology = tree({"from": "/a", "to": "/b", "modifier": double}, cells="/a /b")
    made = planned(head(context={"k": "x" * 40_000}), topology)

    assert (made.published, made.records) == ([], [])
    (letter,) = made.letters
    assert letter.code == "header_too_large"
    assert letter.resolved_target == "/b"
    assert letter.head is not None
    assert letter.head.context == {"k": "x" * 80_000}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="colony.routing")
    return caplog


def levels(lines: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage().split()[0]) for r in lines.records]


def test_a_ttl_death_is_one_error_line_that_tells_all(lines: pytest.LogCaptureFixture) -> None:
    topology = tree({"from": "/a", "to": "/b"}, cells="/a /b")
    made = planned(head(ttl=0), topology)

    assert levels(lines) == [("ERROR", "ttl_expired")]
    (letter,) = made.letters
    assert letter.head is not None
    for part in (letter.head.id, "/a", "/b", "t-1", "message_default_ttl"):
        assert part in lines.text


def test_any_other_death_is_a_warning(lines: pytest.LogCaptureFixture) -> None:
    planned(head(), tree(cells="/a"))

    assert levels(lines) == [("WARNING", "no_route")]


@pytest.mark.parametrize(
    ("edge", "expected"),
    [
        ({"condition": "hop.absent == 1"}, [("DEBUG", "edge_passed_over")]),
        ({"condition": "has(hop.absent) && hop.absent == 1"}, []),
        ({"condition": "hop.n == 2"}, []),
        ({"condition": "hop.n < 'x'"}, [("WARNING", "edge_passed_over")]),
        ({"condition": "hopp.n == 1"}, [("WARNING", "edge_passed_over")]),
        ({"condition": "hop.n"}, [("WARNING", "edge_passed_over")]),
        ({"condition": "'true'"}, [("WARNING", "edge_passed_over")]),
        ({"modifier": {"set_hop": {"k": "hop.absent"}}}, [("WARNING", "edge_passed_over")]),
        ({"modifier": {"set_hop": {"k": "int('x')"}}}, [("WARNING", "edge_passed_over")]),
    ],
)
def test_how_loud_an_edge_is_that_is_passed_over(
    edge: dict[str, Any], expected: list[tuple[str, str]], lines: pytest.LogCaptureFixture
) -> None:
    topology = tree(
        {"from": "/a", "to": "/b", **edge}, {"from": "/a", "to": "/c"}, cells="/a /b /c"
    )
    made = planned(head(hop={"n": 1}), topology)

    assert levels(lines) == expected
    assert [decode_head(out.head).target for out in made.published] == ["/c"]
