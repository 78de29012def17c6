"""The join by one operation of the store."""

import pytest

from colony.body import Entry
from workers.toolloop.collect import Params, collect
from workers.toolloop.rows import assistant_row, tool_row, user_row
from workers.toolloop.settle import settle


def test_answer_tells_what_its_round_waits_for(arriving, called, asked_of_store):
    entries = (called("a"), Entry.say("assistant", "hm"), called("b"))

    (request,) = settle(arriving(*entries, hop={"route": "c_asst"}, iter=1), Params())

    operation = asked_of_store(request)
    assert operation["expects"] == ["a", "b"]
    assert operation["key"] == {"turn_id": "t-7", "iter": 1}
    assert operation["guard"] == {"role": "assistant", "fired": 0}
    assert operation["quiet_unless_won"] is True


def test_first_round_waits_for_the_row_of_its_question_too(arriving, called, asked_of_store):
    (request,) = settle(arriving(called("a"), hop={"route": "c_asst"}), Params())

    assert asked_of_store(request)["expects"] == ["a", "@question"]


def test_each_result_answers_its_call(arriving, asked_of_store):
    entries = (Entry.result("a", "1"), Entry.result("b", "2"))

    requests = settle(arriving(*entries, hop={"route": "c_res"}), Params())

    assert [asked_of_store(request)["answers"] for request in requests] == [["a"], ["b"]]


def test_result_under_the_id_of_the_question_answers_nothing(arriving, asked_of_store):
    (request,) = settle(arriving(Entry.result("@question", "1"), hop={"route": "c_res"}), Params())

    assert "answers" not in asked_of_store(request)


def test_rows_are_those_of_the_classic_protocol(arriving, called, asked_of_store):
    for entries, route in (
        ((called("a"), called("b")), "c_asst"),
        ((Entry.result("a", "1"), Entry.result("b", "2")), "c_res"),
    ):
        envelope = arriving(*entries, hop={"route": route})

        assert [asked_of_store(request)["row"] for request in settle(envelope, Params())] == [
            asked_of_store(request)["row"] for request in collect(envelope, Params())
        ]


def test_winner_fires_the_thread_that_the_classic_protocol_fires(replied, called):
    rows = [
        user_row("t-7", Entry.say("user", "why?")),
        assistant_row("t-7", 0, [called("a"), called("b")]),
        tool_row("t-7", 0, Entry.result("b", "2")),
        tool_row("t-7", 0, Entry.result("a", "1")),
    ]

    fired = settle(replied("settle", rows), Params())

    assert fired == collect(replied("select", rows, firing="1"), Params())
    assert len(fired) == 1


@pytest.mark.parametrize(
    "hop",
    [
        {"rows_affected": 0},
        {"rows_affected": 1, "error_code": "query_timeout"},
        {"error_code": "constraint_violation", "rows_affected": 0},
    ],
)
def test_whoever_did_not_win_parks(replied, hop):
    assert settle(replied("settle", [], hop=hop), Params()) == []


def test_reply_to_another_operation_parks(replied):
    assert settle(replied("insert"), Params()) == []
