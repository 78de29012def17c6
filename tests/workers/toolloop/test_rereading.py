"""A chain that may go on reads its thread again: after a fold, and after a window was refused."""

import json

import pytest

from colony.body import Entry
from workers.toolloop.close import close, close_settling
from workers.toolloop.collect import Params, collect
from workers.toolloop.places import Places
from workers.toolloop.requests import SUMMARY_CALL_ID
from workers.toolloop.rows import assistant_row, summary_row, tool_row, user_row
from workers.toolloop.settle import settle

JOINS = pytest.mark.parametrize("join", [collect, settle])
FOLDING = {"firing": "1", "compacting": "1"}


@JOINS
@pytest.mark.parametrize(
    "hop", [{"operation": "insert", "rows_affected": 1}, {"operation": "insert", "error_code": "x"}]
)
def test_answer_to_a_summary_leads_to_the_thread(arriving, asked_of_store, join, hop):
    reply = arriving(Entry.result(SUMMARY_CALL_ID, ""), hop=hop, **FOLDING)

    (emission,) = join(reply, Params())

    assert emission.hop["route"] == "cstore"
    assert asked_of_store(emission)["operation"] == "select"


@JOINS
def test_refused_window_leads_to_the_thread(arriving, asked_of_store, join):
    refused = arriving(
        Entry.say("user", "Q"), hop={"route": "c_again", "finish_reason": "error"}, firing="1"
    )

    (emission,) = join(refused, Params())

    assert emission.hop["route"] == "cstore"
    assert asked_of_store(emission)["operation"] == "select"


@JOINS
def test_thread_that_does_not_come_ends_the_chain(replied, join):
    failed = replied("select", hop={"error_code": "query_timeout"}, **FOLDING)

    assert join(failed, Params()) == []


@JOINS
def test_thread_read_again_fires_what_no_summary_stands_for(replied, called, join):
    question, summary = Entry.say("user", "Q"), Entry.say("assistant", "A")
    earlier = [Entry.say("user", "Q"), Entry.say("assistant", "A")]
    rows = [
        user_row("t-7", question, earlier=earlier),
        summary_row("t-7", 0, summary),
        *(row for number in range(2) for row in _round(number, called)),
    ]

    (fired,) = join(replied("select", rows, **FOLDING), Params())

    assert fired.hop == {"route": "fire", "question_at": 2, "summary_at": 3}
    assert [entry.text for entry in fired.body.entries[2:4]] == ["Q", "A"]
    assert [entry.id for entry in fired.body.entries[4:]] == ["call-1", "call-1"]


@pytest.mark.parametrize(("iteration", "route"), [(1, "c_again"), (0, "failed")])
@pytest.mark.parametrize("closer", [close, close_settling])
def test_question_whose_fold_was_lost_is_gone_on_with(replied, called, closer, iteration, route):
    """Only where it is the newest round that was folded: what is known may be of an earlier one."""
    rows = [user_row("t-7", Entry.say("user", "Q")), *_round(0, called), *_round(1, called)]
    claimed = [{**row, "fired": 1} if row["role"] == "assistant" else row for row in rows]

    (emission,) = closer(replied("select", claimed, iter=iteration, outputs=0, **FOLDING), Params())

    assert emission.hop["route"] == route


def test_select_without_the_permission_to_go_on_is_nothing_to_settle(replied):
    assert settle(replied("select", []), Params()) == []


def test_places_that_nobody_told_are_none(arriving):
    places = Places.of(arriving(Entry.say("user", "Q")))

    assert (places.question, places.summary, places.rounds) == (None, None, 0)


def _round(number, called):
    call = called(f"call-{number}", arguments=json.dumps({}))
    return (
        assistant_row("t-7", number, [call]),
        tool_row("t-7", number, Entry.result(f"call-{number}", "42")),
    )
