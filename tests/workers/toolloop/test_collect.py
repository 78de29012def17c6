"""The join by inserts, selects and one guarded update, one reply at a time."""

import json

import pytest

from colony.body import Entry
from workers.toolloop.collect import Params, collect
from workers.toolloop.rows import assistant_row, tool_row, user_row

QUESTION = Entry.say("user", "why?")


@pytest.fixture
def rows(called):
    """The rows of a first round with the calls a and b; those of `results` have come."""

    def make(*results, question=True, iteration=0, fired=0):
        said = assistant_row("t-7", iteration, [called("a"), called("b")])
        asked = [user_row("t-7", QUESTION)] if question else []
        arrived = [
            tool_row("t-7", iteration, Entry.result(call_id, f"{call_id}-ok"))
            for call_id in results
        ]
        return [*asked, {**said, "fired": fired}, *arrived]

    return make


def test_whole_answer_becomes_one_row_with_an_open_guard(arriving, called, asked_of_store):
    entries = (called("a"), called("b"), Entry.say("assistant", "two at once"))

    (request,) = collect(arriving(*entries, hop={"route": "c_asst"}), Params())

    operation = asked_of_store(request)
    assert request.hop["route"] == "cstore"
    assert (operation["row"]["role"], operation["row"]["fired"]) == ("assistant", 0)
    assert len(json.loads(operation["row"]["turn"])) == 3


def test_every_result_of_a_message_becomes_a_row_under_its_id(arriving, asked_of_store):
    entries = (Entry.result("a", "1"), Entry.say("tool", "noise"), Entry.result("b", "2"))

    requests = collect(arriving(*entries, hop={"route": "c_res"}, iter="3"), Params())

    stored = [asked_of_store(request)["row"] for request in requests]
    assert [row["call_id"] for row in stored] == ["a", "b"]
    assert {row["iter"] for row in stored} == {3}


def test_tool_that_answers_like_a_store_is_a_tool(arriving, asked_of_store):
    hop = {"route": "c_res", "operation": "insert", "rows_affected": 1}

    (request,) = collect(arriving(Entry.result("a", "null"), hop=hop), Params())

    assert asked_of_store(request)["row"]["call_id"] == "a"


def test_failed_tool_is_a_result_like_any_other(arriving, asked_of_store):
    hop = {"route": "c_res", "error_code": "timeout", "finish_reason": "error"}

    (request,) = collect(arriving(Entry.result("a", "late", is_error=True), hop=hop), Params())

    assert json.loads(asked_of_store(request)["row"]["turn"])["is_error"] is True


def test_stored_row_leads_to_a_look_at_the_round(replied, asked_of_store):
    (request,) = collect(replied("insert"), Params())

    operation = asked_of_store(request)
    assert request.hop["route"] == "cstore"
    assert (operation["operation"], operation["where"]) == ("select", {"turn_id": "t-7"})


@pytest.mark.parametrize("arrived", [("a", "b"), ("b", "a"), ("a", "b", "b"), ("b", "a", "a")])
def test_complete_round_contends_for_the_guard(replied, rows, asked_of_store, arrived):
    (request,) = collect(replied("select", rows(*arrived)), Params())

    operation = asked_of_store(request)
    assert request.hop["route"] == "cguard"
    assert operation["set"] == {"fired": 1}
    assert operation["where"] == {"turn_id": "t-7", "iter": 0, "role": "assistant", "fired": 0}


@pytest.mark.parametrize("arrived", [(), ("a",), ("a", "a"), ("b", "x")])
def test_round_that_waits_for_a_result_parks(replied, rows, arrived):
    assert collect(replied("select", rows(*arrived)), Params()) == []


def test_round_without_the_row_of_its_question_is_not_complete(replied, rows):
    found = rows("a", "b", question=False)

    assert collect(replied("select", found), Params()) == []
    assert len(collect(replied("select", found), Params(needs_question=False))) == 1


def test_results_without_the_answer_that_asked_for_them_complete_nothing(replied, rows):
    found = [row for row in rows("a", "b") if row["role"] != "assistant"]

    assert collect(replied("select", found), Params()) == []


def test_results_of_another_round_or_question_do_not_count(replied, rows):
    earlier = rows("a", "b", iteration=0)
    other = [{**row, "turn_id": "t-8"} for row in rows("b", iteration=1)]
    current = rows("a", iteration=1, question=False)

    assert collect(replied("select", [*earlier, *other, *current], iter=1), Params()) == []


@pytest.mark.parametrize(("affected", "goes_on"), [(1, True), (2, True), (0, False)])
def test_only_who_changed_the_guard_goes_on(replied, affected, goes_on):
    requests = collect(replied("update", hop={"rows_affected": affected}, firing="1"), Params())

    assert [request.hop["route"] for request in requests] == (["cguard"] if goes_on else [])


def test_winner_rebuilds_the_thread_in_call_order_without_duplicates(replied, rows, called):
    found = [*rows("b", "a"), tool_row("t-7", 0, Entry.result("a", "again"))]

    (fired,) = collect(replied("select", found, firing="1"), Params())

    assert fired.hop["route"] == "fire"
    assert fired.body.entries == (
        QUESTION,
        called("a"),
        called("b"),
        Entry.result("a", "a-ok"),
        Entry.result("b", "b-ok"),
    )


def test_thread_is_the_same_for_any_order_of_its_rows(replied, rows):
    found = rows("b", "a")

    fired = collect(replied("select", found, firing="1"), Params())

    assert collect(replied("select", found[::-1], firing="1"), Params()) == fired


@pytest.mark.parametrize("operation", ["insert", "select", "update", "error"])
@pytest.mark.parametrize("firing", ["", "1"])
def test_refusal_of_the_store_is_never_taken_for_an_answer(replied, operation, firing):
    refused = replied(
        operation,
        {"error": "unknown_table"},
        hop={"error_code": "unknown_table", "rows_affected": 0},
        firing=firing,
    )

    assert collect(refused, Params()) == []


def test_chain_that_ends_leaves_by_the_park_route_where_there_is_one(replied, rows):
    (parked,) = collect(replied("select", rows("a")), Params(park_route="park"))

    assert parked.hop == {"route": "park"}
    assert parked.body.messages == ()


def test_question_without_an_id_goes_by_its_trace(replied, asked_of_store):
    (request,) = collect(replied("insert", turn_id=None), Params())

    assert asked_of_store(request)["where"] == {"turn_id": "trace-1"}
