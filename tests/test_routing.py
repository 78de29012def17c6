"""Routing: which edges take an envelope, what they change, what it costs, and how it dies."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colony.body import Body
from colony.codec import encode_head
from colony.envelope import Head, derived_id
from colony.routing import COLONY, MAX_TRANSITS, Leg, Routing, answer, route
from colony.topology.model import QUIET, Topology, TopologySpec


def edge(source: str, target: str, condition: str | None = None, **modifier: Any) -> dict[str, Any]:
    written: dict[str, Any] = {"from": source, "to": target}
    if condition is not None:
        written["condition"] = condition
    return {**written, "modifier": modifier} if modifier else written


def tree(*edges: dict[str, Any], cells: str = "/a /b /c", hives: str = "/", **own: Any) -> Topology:
    written = {
        "cells": [{"path": path, "cell": {"type": "code"}} for path in cells.split()],
        "hives": hives.split(),
        "edges": edges,
        "settings": own,
    }
    return Topology.compile(TopologySpec.model_validate_json(json.dumps(written)))


def emission(**fields: Any) -> Head:
    """What the cell /a emitted."""
    given: dict[str, Any] = {
        "id": "m-1",
        "trace_id": "t-1",
        "target": None,
        "ttl": 10,
        "parent_message_id": "m-0",
        "sender": "/a",
        "reply_to": "/a",
        "created_at": 1,
    }
    return Head(**{**given, **fields})


def birth(**fields: Any) -> Head:
    """What came from outside, addressed to /a."""
    given: dict[str, Any] = {"id": "m-1", "trace_id": "m-1", "target": "/a", "ttl": 10}
    return Head(**{**given, **fields})


def only(legs: list[Leg]) -> Head:
    (leg,) = legs
    return leg.head


def targets(legs: list[Leg]) -> list[str | None]:
    return [leg.head.target for leg in legs]


def codes(routing: Routing) -> list[str]:
    return [death.code for death in routing.deaths]


def deliver(head: Head, topology: Topology, hops: int) -> Head:
    """`head` after so many cells that emit what they consume."""
    for index in range(hops):
        head = only(route(head, topology).arrivals)
        head = head.model_copy(
            update={
                "id": derived_id(head.id, index),
                "sender": head.target,
                "target": None,
                "hop": {},
                "parent_message_id": head.id,
                "reply_to": head.target,
            }
        )
    return head


# Where an envelope goes


def test_an_addressed_envelope_arrives_as_it_is_with_one_ttl_less() -> None:
    came = birth(context={"turn_id": "q"}, hop={"route": "x"})
    routing = route(came, tree(edge("/a", "/b")))

    assert only(routing.arrivals) == came.model_copy(update={"ttl": 9})
    assert routing.arrivals[0].edge is None
    assert (routing.transits, routing.deaths, routing.faults) == ([], [], [])


def test_an_emission_follows_the_edges_of_its_sender() -> None:
    left = emission(context={"turn_id": "q"}, hop={"route": "x"}, session="s", correlation_id="k")
    topology = tree(edge("/a", "/b"), edge("/b", "/c"))
    routing = route(left, topology)
    taken = topology.edges_from("/a")[0]

    assert only(routing.arrivals) == left.model_copy(
        update={"id": derived_id("m-1", taken.digest), "target": "/b", "ttl": 9}
    )
    assert routing.arrivals[0].edge is taken


def test_every_edge_that_matches_fires_in_file_order() -> None:
    topology = tree(
        edge("/a", "/c", "hop.n == 1"),
        edge("/a", "/b"),
        edge("/a", "/a", "hop.n == 2"),
        edge("/a", "/b", "hop.n > 0"),
    )

    assert targets(route(emission(hop={"n": 1}), topology).arrivals) == ["/c", "/b", "/b"]


def test_two_edges_that_are_the_same_edge_fire_once() -> None:
    topology = tree(
        edge("/a", "/b", "hop.n == 1", set_hop={"k": "1", "l": "2"}),
        edge("/a", "/b", "hop.n == 1", set_hop={"l": "2", "k": "1"}, restore_ttl=False),
        edge("/a", "/b", "hop.n ==  1", set_hop={"k": "1", "l": "2"}),
    )

    assert len(topology.edges_from("/a")) == 2
    assert len(route(emission(hop={"n": 1}), topology).arrivals) == 2


def test_an_empty_modifier_makes_no_other_edge() -> None:
    empty = {**edge("/a", "/b"), "modifier": {}}

    assert len(tree(edge("/a", "/b"), empty).edges_from("/a")) == 1


def test_an_edge_matches_the_exact_sender_only() -> None:
    topology = tree(edge("/a", "/b"), cells="/a /a/x /b")

    assert codes(route(emission(sender="/a/x"), topology)) == ["no_route"]
    assert codes(route(emission(sender="/"), topology)) == ["no_route"]


def test_an_edge_to_oneself_is_an_edge() -> None:
    assert only(route(emission(), tree(edge("/a", "/a"))).arrivals).target == "/a"


# Conditions


@pytest.mark.parametrize(
    ("condition", "fires"),
    [
        ("hop.route == 'x'", True),
        ("hop.route == 'y'", False),
        ("has(hop.absent) && hop.absent == 'x'", False),
        ("!has(hop.absent)", True),
        ("hop.absent == 'x'", False),
        ("context.absent == 'x'", False),
        ("hopp.route == 'x'", False),
        ("hop.route < 3", False),
        ("hop.route", False),
        ("hop.flag", True),
        ("'true'", False),
        ("1", False),
        ("true", True),
        ("hop.route in ['x', 'y']", True),
        ("hop.route.startsWith('x')", True),
        ("int(context.iter) + 1 == 3", True),
    ],
)
def test_a_condition_fires_on_true_and_on_nothing_else(condition: str, fires: bool) -> None:
    left = emission(hop={"route": "x", "flag": True}, context={"iter": "2"})
    routing = route(left, tree(edge("/a", "/b", condition), edge("/a", "/c")))

    assert targets(routing.arrivals) == (["/b", "/c"] if fires else ["/c"])


@pytest.mark.parametrize(
    ("written", "missing"),
    [
        (edge("/a", "/b", "hop.absent == 1"), True),
        (edge("/a", "/b", "context.absent == 1"), True),
        (edge("/a", "/b", "hop.n < 'x'"), False),
        (edge("/a", "/b", "hopp.n == 1"), False),
        (edge("/a", "/b", "hop.n"), False),
        (edge("/a", "/b", set_hop={"k": "hop.absent"}), False),
        (edge("/a", "/b", set_context={"k": "int('x')"}), False),
    ],
)
def test_an_edge_whose_expression_fails_is_passed_over_and_told(
    written: dict[str, Any], missing: bool
) -> None:
    routing = route(emission(hop={"n": 1}), tree(written, edge("/a", "/c")))

    assert targets(routing.arrivals) == ["/c"]
    (fault,) = routing.faults
    assert (fault.edge.spec.target, fault.missing) == ("/b", missing)
    assert fault.detail


def test_an_edge_that_does_not_match_is_no_fault() -> None:
    assert route(emission(hop={"n": 1}), tree(edge("/a", "/b", "hop.n == 2"))).faults == []


# Modifiers


def modified(left: Head, **modifier: Any) -> Head:
    return only(route(left, tree(edge("/a", "/b", "true", **modifier))).arrivals)


def test_modifiers_read_the_headers_that_came_in_only() -> None:
    left = emission(context={"x": 1}, hop={"y": 2})
    set_context = {"x": "hop.y", "z": "context.x"}
    got = modified(left, set_context=set_context, set_hop={"y": "context.x"})

    assert got.context == {"x": 2, "z": 1}
    assert got.hop == {"y": 1}


def test_a_modifier_does_not_see_what_its_own_set_made() -> None:
    routing = route(emission(), tree(edge("/a", "/b", set_hop={"k": "1", "l": "hop.k"})))

    assert codes(routing) == ["no_route"]


def test_delete_beats_set_and_an_absent_key_is_nothing_to_it() -> None:
    left = emission(context={"x": 1, "keep": 1}, hop={"y": 1, "keep": 1})
    got = modified(
        left,
        set_context={"x": "2"},
        delete_context=["x", "absent"],
        set_hop={"y": "2"},
        delete_hop=["y", "absent"],
    )

    assert (got.context, got.hop) == ({"keep": 1}, {"keep": 1})


def test_a_modifier_may_read_what_it_deletes() -> None:
    got = modified(emission(hop={"k": 1}), set_context={"k": "hop.k"}, delete_hop=["k"])

    assert (got.context, got.hop) == ({"k": 1}, {})


def test_a_modifier_that_fails_in_one_place_changes_nothing() -> None:
    topology = tree(
        edge("/a", "/b", set_context={"x": "1"}, set_hop={"y": "hop.absent"}), edge("/a", "/c")
    )
    routing = route(emission(), topology)

    assert targets(routing.arrivals) == ["/c"]
    assert only(routing.arrivals).context == {}


def test_branches_of_a_fan_out_do_not_see_each_other() -> None:
    topology = tree(
        edge("/a", "/b", set_context={"branch": "'b'", "list": "context.list"}),
        edge("/a", "/c", set_context={"branch": "'c'", "list": "context.list"}),
        edge("/a", "/a"),
    )
    left = emission(context={"branch": "none", "list": [1]})
    legs = route(left, topology).arrivals
    legs[0].head.context["list"].append(2)  # type: ignore[union-attr]

    assert [leg.head.context["branch"] for leg in legs] == ["b", "c", "none"]
    assert legs[1].head.context["list"] == [1]
    assert left.context == {"branch": "none", "list": [1]}


@pytest.mark.parametrize(("value", "expected"), [("0", 1), (0, 1), (5, 6), (2**53, 2**53 + 1)])
def test_an_edge_counts(value: Any, expected: int) -> None:
    got = modified(emission(context={"iter": value}), set_context={"iter": "int(context.iter) + 1"})

    assert got.context == {"iter": expected}
    assert type(got.context["iter"]) is int


def test_context_rides_along_and_hop_ends_at_the_next_cell() -> None:
    topology = tree(
        edge("/a", "/b", set_context={"turn_id": "'q'"}, set_hop={"note": "1"}),
        edge("/b", "/c"),
        edge("/c", "/a"),
    )
    first = only(route(emission(hop={"route": "x"}), topology).arrivals)
    third = deliver(emission(hop={"route": "x"}), topology, hops=3)

    assert first.hop == {"route": "x", "note": 1}
    assert (third.context, third.hop) == ({"turn_id": "q"}, {})


# What it costs


def test_a_budget_of_n_buys_n_decisions() -> None:
    topology = tree(edge("/a", "/b"), edge("/b", "/a"))
    for budget in range(1, 8):
        last = deliver(birth(ttl=budget), topology, hops=budget)

        assert last.ttl == 0
        assert codes(route(last, topology)) == ["ttl_expired"]


def test_an_envelope_without_budget_dies_before_anything_else() -> None:
    for target in ("/a", "/gone", "/colony", "/hive"):
        routing = route(birth(ttl=0, target=target), tree(edge("/a", "/b"), hives="/ /hive"))

        assert codes(routing) == ["ttl_expired"]
        assert routing.deaths[0].head.ttl == 0
        assert "message_default_ttl" in routing.deaths[0].detail


def test_an_emission_that_no_edge_takes_is_no_route_even_without_budget() -> None:
    assert codes(route(emission(ttl=0), tree())) == ["no_route"]


def test_branches_have_a_budget_each() -> None:
    topology = tree(edge("/a", "/b"), edge("/a", "/c"), edge("/a", "/a"))

    assert [leg.head.ttl for leg in route(emission(ttl=5), topology).arrivals] == [4, 4, 4]
    assert codes(route(emission(ttl=0), topology)) == ["ttl_expired"] * 3


@pytest.mark.parametrize(
    ("ttl", "default", "left"), [(3, 64, 63), (0, 64, 63), (64, 64, 63), (160, 64, 159), (1, 1, 0)]
)
def test_restore_lifts_to_the_default_and_never_lowers(ttl: int, default: int, left: int) -> None:
    topology = tree(edge("/a", "/b", "true", restore_ttl=True), message_default_ttl=default)

    assert only(route(emission(ttl=ttl), topology).arrivals).ttl == left


def test_restore_does_not_touch_the_other_branch() -> None:
    topology = tree(edge("/a", "/b", "true", restore_ttl=True), edge("/a", "/c"))

    assert [leg.head.ttl for leg in route(emission(ttl=5), topology).arrivals] == [63, 4]


# Hives


THROUGH = tree(
    edge("/a", "/hive", "hop.route == 'x'", set_hop={"mark": "'in'"}, set_context={"at": "'door'"}),
    edge("/hive", "/b", "hop.mark == 'in'", set_hop={"mark": "'through'"}, delete_context=["at"]),
    hives="/ /hive",
)


def test_a_hive_is_passed_through_at_the_price_of_one_ttl() -> None:
    routing = route(emission(hop={"route": "x"}, correlation_id="k"), THROUGH)
    entered, arrived = only(routing.transits), only(routing.arrivals)

    assert (entered.target, entered.sender, entered.ttl) == ("/hive", "/a", 9)
    assert (arrived.target, arrived.sender, arrived.ttl) == ("/b", "/hive", 8)
    assert entered.parent_message_id == "m-0"
    assert arrived.parent_message_id == entered.id
    assert (arrived.reply_to, arrived.correlation_id, arrived.trace_id) == ("/a", "k", "t-1")
    assert routing.deaths == []


def test_hop_and_context_cross_a_hive_and_modifiers_add_up() -> None:
    routing = route(emission(hop={"route": "x"}), THROUGH)

    assert only(routing.transits).hop == {"route": "x", "mark": "in"}
    assert only(routing.transits).context == {"at": "door"}
    assert only(routing.arrivals).hop == {"route": "x", "mark": "through"}
    assert only(routing.arrivals).context == {}


def test_ids_of_legs_are_derived_from_the_edges_they_took() -> None:
    routing = route(emission(hop={"route": "x"}), THROUGH)
    (into,), (out,) = THROUGH.edges_from("/a"), THROUGH.edges_from("/hive")

    assert only(routing.transits).id == derived_id("m-1", into.digest)
    assert only(routing.arrivals).id == derived_id(only(routing.transits).id, out.digest)


def test_an_envelope_from_outside_may_enter_by_a_hive() -> None:
    topology = tree(edge("/hive", "/a"), edge("/hive", "/b"), hives="/ /hive")
    routing = route(birth(target="/hive"), topology)

    assert only(routing.transits).id == "m-1"
    assert targets(routing.arrivals) == ["/a", "/b"]
    assert len({leg.head.id for leg in routing.arrivals} | {"m-1"}) == 3


def test_the_root_is_a_hive_as_well() -> None:
    routing = route(birth(target="/"), tree(edge("/", "/a")))

    assert (targets(routing.transits), targets(routing.arrivals)) == (["/"], ["/a"])


def test_an_edge_to_its_own_hive_leads_out_of_it() -> None:
    """`x -> "."` addresses the hive: the hive's own edges and those of its parent decide."""
    topology = tree(
        edge("/hive/x", "/hive"),
        edge("/hive", "/hive/x", "!has(hop.finish_reason)"),
        edge("/hive", "/b", "has(hop.finish_reason)"),
        cells="/hive/x /b",
        hives="/ /hive",
    )
    inward = route(birth(target="/hive"), topology)
    outward = route(emission(sender="/hive/x", hop={"finish_reason": "stop"}), topology)

    assert targets(inward.arrivals) == ["/hive/x"]
    assert targets(outward.arrivals) == ["/b"]


def test_a_hive_that_no_edge_leaves_is_hive_no_route() -> None:
    topology = tree(edge("/a", "/hive"), edge("/hive", "/b", "hop.n == 1"), hives="/ /hive")
    routing = route(emission(hop={"n": 2}), topology)

    assert codes(routing) == ["hive_no_route"]
    assert targets(routing.transits) == ["/hive"]
    (death,) = routing.deaths
    assert (death.head.target, death.head.sender, death.head.ttl) == ("/hive", "/a", 9)
    assert death.edges == ({"to": "/b", "condition": "hop.n == 1", "verdict": "false"},)


def test_what_an_edge_was_passed_over_for_on_an_earlier_round_is_not_told_again() -> None:
    topology = tree(
        edge("/x", "/a", "hop.k == 1"),
        edge("/x", "/x", "!has(hop.k)", set_hop={"k": "2"}),
        hives="/ /x",
    )
    routing = route(birth(target="/x"), topology)

    assert codes(routing) == ["hive_no_route"]
    assert [fault.missing for fault in routing.faults] == [True]
    assert [tried["verdict"] for tried in routing.deaths[0].edges] == ["false", "false"]


def test_two_hives_in_a_circle_spend_the_budget_and_die_once() -> None:
    topology = tree(edge("/x", "/y"), edge("/y", "/x"), hives="/ /x /y")
    routing = route(birth(target="/x", ttl=4), topology)

    assert [(leg.head.target, leg.head.ttl) for leg in routing.transits] == [
        ("/x", 3),
        ("/y", 2),
        ("/x", 1),
        ("/y", 0),
    ]
    assert codes(routing) == ["ttl_expired"]
    assert (routing.deaths[0].head.target, routing.deaths[0].head.ttl) == ("/x", 0)
    parents = [leg.head.parent_message_id for leg in routing.transits[1:]]
    assert parents == [leg.head.id for leg in routing.transits[:-1]]


@pytest.mark.parametrize("edges", [2, 20])
def test_hives_that_multiply_an_envelope_end_it_as_one_death(edges: int) -> None:
    """Each hop doubles it: 2**64 envelopes, if the ttl were the only bound."""
    loops = [edge("/x", "/x", set_hop={"n": str(number)}) for number in range(edges)]
    topology = tree(*loops, edge("/x", "/a"), hives="/ /x")
    came = birth(target="/x", ttl=64)
    started = time.perf_counter()
    routing = route(came, topology)

    assert time.perf_counter() - started < 5
    assert codes(routing) == ["transit_limit"]
    assert routing.deaths[0].head == came
    assert (routing.arrivals, routing.transits) == ([], [])


def test_a_circle_that_restores_its_own_budget_ends() -> None:
    topology = tree(edge("/x", "/x", "true", restore_ttl=True), hives="/ /x")

    assert codes(route(birth(target="/x"), topology)) == ["transit_limit"]


def test_as_many_transits_as_allowed_are_made() -> None:
    topology = tree(edge("/x", "/x"), hives="/ /x")
    routing = route(birth(target="/x", ttl=MAX_TRANSITS), topology)

    assert len(routing.transits) == MAX_TRANSITS
    assert codes(routing) == ["ttl_expired"]


@pytest.mark.parametrize(
    ("grow", "code"),
    [("context.k + context.k", "header_too_large"), ("{'k': context.k}", "envelope_invalid")],
)
def test_headers_that_grow_at_every_hive_end_in_time(grow: str, code: str) -> None:
    topology = tree(edge("/x", "/x", set_context={"k": grow}), hives="/ /x")
    routing = route(birth(target="/x", ttl=200, context={"k": "x" * 100}), topology)

    assert codes(routing) == [code]
    assert len(routing.transits) < 70
    for leg in routing.transits:
        encode_head(leg.head)


# How it dies


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/gone", "unresolved_path"),
        ("/a/gone", "unresolved_path"),
        ("", "unresolved_path"),
        ("/alone", "cell_inactive"),
        ("/colony", "colony_endpoint_invalid"),
        ("/colony/", "colony_endpoint_unimplemented"),
        ("/colony/messages", "colony_endpoint_unimplemented"),
        (QUIET, "colony_endpoint_unimplemented"),
        ("/colonyx", "unresolved_path"),
    ],
)
def test_a_target_that_takes_no_envelopes(target: str, code: str) -> None:
    topology = tree(edge("/a", "/b"), cells="/a /b /alone")
    routing = route(birth(target=target), topology)

    assert codes(routing) == [code]
    assert routing.deaths[0].head.ttl == 10
    assert (routing.arrivals, routing.transits) == ([], [])


@pytest.mark.parametrize("target", ["/colony", "/colony/messages", "/gone"])
def test_an_edge_to_where_nothing_is_dies_as_an_address_does(target: str) -> None:
    by_edge = route(emission(reply_to=None), tree(edge("/a", target)))
    by_address = route(birth(target=target), tree(edge("/a", "/b")))

    assert codes(by_edge) == codes(by_address)


def test_a_cell_is_active_where_an_edge_touches_it() -> None:
    topology = tree(edge("/a", "/b"), edge(QUIET, "/c"), cells="/a /b /c /d")

    assert topology.active == {"/a", "/b", "/c"}


def test_no_route_tells_what_became_of_every_edge() -> None:
    topology = tree(
        edge("/a", "/b", "hop.n == 2"),
        edge("/a", "/c", "hop.absent == 1"),
        edge("/a", "/d", set_hop={"k": "int('x')"}),
    )
    left = emission(hop={"n": 1})
    routing = route(left, topology)
    (death,) = routing.deaths

    assert (death.code, death.head) == ("no_route", left)
    assert [(tried["to"], tried["condition"]) for tried in death.edges] == [
        ("/b", "hop.n == 2"),
        ("/c", "hop.absent == 1"),
        ("/d", None),
    ]
    verdicts = [str(tried["verdict"]) for tried in death.edges]
    assert verdicts[0] == "false"
    assert "absent" in verdicts[1]
    assert verdicts[2].startswith("modifier: ")


def test_no_route_and_its_kin_answer_nobody() -> None:
    topology = tree(edge("/a", "/b", "false"), edge("/b", "/a"), cells="/a /b /alone", hives="/ /h")
    for head in (
        emission(),
        emission(target="/h"),
        emission(target="/alone"),
        emission(target="/colony"),
        emission(target="/a", ttl=0),
    ):
        routing = route(head, topology)

        assert len(routing.deaths) == 1
        assert routing.arrivals == []


# Colony's replies


GONE = tree(edge("/a", "/gone"), edge("/a", "/b", "has(hop.never)"))


def test_an_unresolved_path_is_answered_once_and_written_down_as_well() -> None:
    routing = route(emission(context={"turn_id": "q"}, session="s", hop={"route": "x"}), GONE)
    (death,), reply = routing.deaths, only(routing.arrivals)

    assert death.code == "unresolved_path"
    assert (reply.sender, reply.target, reply.reply_to) == (COLONY, "/a", None)
    assert (reply.parent_message_id, reply.trace_id) == (death.head.id, "t-1")
    assert reply.id not in {death.head.id, "m-1"}
    assert (reply.context, reply.session) == ({"turn_id": "q"}, "s")
    assert reply.hop == {
        "finish_reason": "error",
        "error_code": "unresolved_path",
        "dead_target": "/gone",
        "dead_message_id": death.head.id,
    }
    body = routing.arrivals[0].body
    assert isinstance(body, Body)
    assert body.last("assistant") is not None


def test_the_reply_goes_on_with_the_budget_of_the_dead() -> None:
    assert only(route(emission(ttl=5), GONE).arrivals).ttl == 3
    assert only(route(emission(ttl=2), GONE).arrivals).ttl == 0
    assert codes(route(emission(ttl=1), GONE)) == ["unresolved_path", "ttl_expired"]


def test_an_unresolved_path_of_nobody_is_written_down_only() -> None:
    routing = route(emission(reply_to=None), GONE)

    assert (codes(routing), routing.arrivals) == (["unresolved_path"], [])


def test_a_reply_that_is_unresolved_itself_is_a_second_death_and_the_last() -> None:
    routing = route(emission(reply_to="/away"), GONE)

    assert [(death.code, death.head.target) for death in routing.deaths] == [
        ("unresolved_path", "/gone"),
        ("unresolved_path", "/away"),
    ]
    assert routing.deaths[0].body is None
    assert routing.deaths[1].body is not None
    assert routing.arrivals == []


def test_a_reply_may_pass_a_hive_and_keeps_its_body() -> None:
    topology = tree(edge("/a", "/gone"), edge("/hive", "/b"), hives="/ /hive")
    routing = route(emission(reply_to="/hive"), topology)

    assert (targets(routing.transits), targets(routing.arrivals)) == (["/hive"], ["/b"])
    assert routing.transits[0].body is routing.arrivals[0].body is not None


def test_a_ttl_death_is_told_to_nobody_unless_the_tree_asks_for_it() -> None:
    assert route(emission(ttl=0), tree(edge("/a", "/b"))).arrivals == []


NOTICE = tree(edge("/a", "/b"), ttl_notice=True, message_default_ttl=20)


def test_a_notice_of_a_ttl_death_starts_with_a_fresh_budget() -> None:
    routing = route(emission(ttl=0, context={"turn_id": "q"}), NOTICE)
    (death,), notice = routing.deaths, only(routing.arrivals)

    assert death.code == "ttl_expired"
    assert (notice.sender, notice.target, notice.reply_to) == (COLONY, "/a", None)
    assert (notice.ttl, notice.context) == (19, {"turn_id": "q"})
    assert notice.hop == {
        "finish_reason": "error",
        "error_code": "ttl_expired",
        "dead_target": "/b",
        "dead_message_id": death.head.id,
    }


def test_there_is_no_notice_of_a_notice() -> None:
    notice = only(route(emission(ttl=0), NOTICE).arrivals)
    routing = route(notice.model_copy(update={"ttl": 0}), NOTICE)

    assert (codes(routing), routing.arrivals) == (["ttl_expired"], [])


def test_there_is_no_notice_for_nobody() -> None:
    routing = route(emission(ttl=0, reply_to=None), NOTICE)

    assert (codes(routing), routing.arrivals) == (["ttl_expired"], [])


def test_an_answer_to_an_emission_names_its_sender_as_the_dead_target() -> None:
    leg = answer(emission(), "contract_violation", ttl=5, suffix="reply")

    assert leg is not None
    assert leg.head.hop["dead_target"] == "/a"
    assert leg.head.id == derived_id("m-1", "reply")


# The quiet lane


def test_what_leaves_the_quiet_lane_is_routed_like_any_emission() -> None:
    topology = tree(edge(QUIET, "/b", "hop.outputs == 0"), edge("/a", "/b"))
    left = emission(sender=QUIET, reply_to=None, hop={"route": "quiet", "outputs": 0})

    assert targets(route(left, topology).arrivals) == ["/b"]
    left = emission(sender=QUIET, reply_to=None, hop={"route": "quiet", "outputs": 1})
    assert codes(route(left, topology)) == ["no_route"]


# For every topology

CELLS = ["/a", "/b", "/c"]
HIVES = ["/x", "/y"]
PLACES = st.sampled_from([*CELLS, *HIVES, "/gone", COLONY])
CONDITIONS = st.sampled_from([None, "hop.n == 1", "hop.n > 1", "hop.absent == 1", "hop.n < 'x'"])
MODIFIERS = st.sampled_from(
    [
        {},
        {"set_hop": {"n": "hop.n + 1"}},
        {"set_context": {"c": "hop.n"}, "delete_hop": ["m"]},
        {"set_hop": {"k": "context.absent"}},
        {"restore_ttl": True},
    ]
)
EDGES = st.lists(
    st.builds(
        lambda source, target, condition, modifier: edge(source, target, condition, **modifier),
        st.sampled_from([*CELLS, *HIVES]),
        PLACES,
        CONDITIONS,
        MODIFIERS,
    ),
    max_size=7,
)


@given(
    EDGES,
    st.none() | PLACES,
    st.integers(0, 5),
    st.none() | st.sampled_from([*CELLS, *HIVES, "/gone"]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_routing_loses_nothing_repeats_nothing_and_changes_nothing(
    edges: list[dict[str, Any]], target: str | None, ttl: int, reply_to: str | None, notice: bool
) -> None:
    topology = tree(*edges, hives="/ /x /y", ttl_notice=notice, message_default_ttl=4)
    head = emission(target=target, ttl=ttl, reply_to=reply_to, hop={"n": 1, "m": 2})
    before = encode_head(head)
    routing = route(head, topology)

    assert route(head, topology) == routing
    assert encode_head(head) == before
    if codes(routing) == ["transit_limit"]:
        return
    check_ids(head, routing)
    check_places(routing, topology)
    check_count(head, routing, topology)


def check_ids(head: Head, routing: Routing) -> None:
    """Each leg has an id of its own; only what dies in a hive has that of its transit."""
    ended = [leg.head.id for leg in [*routing.arrivals, *routing.transits]]
    ended += [death.head.id for death in routing.deaths if death.code != "hive_no_route"]

    assert len(set(ended)) == len(ended)
    assert {leg.head.trace_id for leg in routing.arrivals} <= {head.trace_id}


def check_places(routing: Routing, topology: Topology) -> None:
    assert {leg.head.target for leg in routing.arrivals} <= topology.active
    assert {leg.head.target for leg in routing.transits} <= topology.hives
    assert all(leg.head.ttl >= 0 for leg in [*routing.arrivals, *routing.transits])


def check_count(head: Head, routing: Routing, topology: Topology) -> None:
    """Every leg that set out has arrived, passed on or died; every parent is accounted for."""
    passed = {leg.head.id: leg for leg in routing.transits}
    onward = [leg.head for leg in [*routing.arrivals, *routing.transits]]
    onward += [death.head for death in routing.deaths if death.code != "hive_no_route"]
    dead_in = {death.head.id for death in routing.deaths if death.code == "hive_no_route"}
    out_of_hives = {one.parent_message_id for one in onward if one.sender in topology.hives}

    assert out_of_hives | dead_in == passed.keys()
    assert out_of_hives & dead_in == set()
    answered = {one.hop["dead_message_id"] for one in onward if one.sender == COLONY}
    told = {
        death.head.id
        for death in routing.deaths
        if death.head.reply_to is not None
        and (
            death.code == "unresolved_path"
            or (death.code == "ttl_expired" and topology.settings.ttl_notice)
        )
    }
    assert answered == told
    starts = [one for one in onward if one.sender not in topology.hives and one.sender != COLONY]
    if head.target is not None:
        assert [one.id for one in starts] == [head.id]
    elif codes(routing) == ["no_route"]:
        assert [one.id for one in starts] == [head.id]
    else:
        own = {edge.digest for edge in topology.edges_from(head.sender)}
        assert {one.id for one in starts} <= {derived_id(head.id, digest) for digest in own}
        assert starts
