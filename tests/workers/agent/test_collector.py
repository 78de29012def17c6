"""Collector: what becomes of the results of a batch, one by one and all together."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Emission, Envelope
from tests.workers.agent.in_hand import RUN, arriving, events, in_hand, kinds, put
from workers.agent.batches import BatchedCall, kept, question_of
from workers.agent.collector import collector
from workers.toolloop.rows import assistant_row, tool_row
from workers.toolloop.view import ViewParams

OWN = ViewParams()


def call(call_id: str, *, batch: int = 0, note: str = "") -> BatchedCall:
    return BatchedCall(id=call_id, name="read", arguments="{}", batch=batch, note=note)


def waiting(
    *call_ids: str, calls: Sequence[BatchedCall] = (), batch: int = 0, **given: Any
) -> RunInHand:
    """A run whose batch has these calls open."""
    fields = {"calls": kept(calls or [call(each, batch=batch) for each in call_ids])}
    return in_hand(
        turn=given.pop("turn", 0),
        batch=batch,
        open_calls=tuple((each, "read") for each in call_ids),
        fields={**fields, **given.pop("fields", {})},
        **given,
    )


def coming(*results: Entry, **hop: Any) -> Envelope:
    return arriving(*results, **{"route": "c_res", **hop})


def result(call_id: str, text: str = "found", *, is_error: bool = False) -> Entry:
    return Entry.result(call_id, text, is_error=is_error)


def settled(emission: Emission) -> dict[str, Any]:
    """What the store is asked to settle."""
    assert emission.hop == {"route": "cstore"}
    return dict(json.loads(emission.body.entries[0].text or ""))


def joined(
    run: RunInHand, *results: Entry, batch: int = 0, own: ViewParams = OWN, **hop: Any
) -> list[Emission]:
    """What follows from the word of the store that these results, as they came, complete it."""
    turn_id = question_of(RUN, batch)
    said = [call(call_id, batch=batch).entry() for call_id, _ in run.record.open_calls]
    rows = [assistant_row(turn_id, batch, said), *(tool_row(turn_id, batch, r) for r in results)]
    reply = Entry.result("c-op", json.dumps(rows))
    return collector(
        arriving(reply, **{"operation": "settle", "rows_affected": 1, **hop}), own, run
    )


# One result.


def test_result_is_shown_at_once_and_goes_to_the_store() -> None:
    run = waiting("a", "b", batch=3)

    (emission,) = collector(coming(result("b", "it")), OWN, run)

    asked = settled(emission)
    assert (asked["operation"], asked["answers"]) == ("settle", ["b"])
    assert asked["row"]["turn_id"] == f"{RUN}:3"
    assert (asked["row"]["role"], asked["row"]["call_id"]) == ("tool", "b")
    (event,) = run.changes.events
    assert (event.kind, event.durable) == ("tool.result.available", False)
    assert json.loads(event.payload) == {
        "call_id": "b", "name": "read", "content": "it", "is_error": False
    }  # fmt: skip
    assert run.changes.counts == {}
    assert run.changes.rows == []


def test_result_that_comes_again_is_neither_shown_nor_stored() -> None:
    run = waiting("a")
    collector(coming(result("a", "first")), OWN, run)
    again = waiting("a", fields=put(run))

    assert collector(coming(result("a", "second")), OWN, again) == []
    assert not again.changes.any


def test_of_two_results_of_one_call_in_one_message_the_first_counts() -> None:
    run = waiting("a")

    (emission,) = collector(coming(result("a", "first"), result("a", "second")), OWN, run)

    assert "first" in settled(emission)["row"]["turn"]
    assert [told["content"] for told in events(run)] == ["first"]


@pytest.mark.parametrize("open_calls", [("b",), ()])
def test_late_result_of_a_call_that_is_not_open_changes_nothing(
    open_calls: tuple[str, ...],
) -> None:
    run = waiting(*open_calls, batch=1)

    assert collector(coming(result("a")), OWN, run) == []
    assert not run.changes.any


def test_same_id_in_a_later_batch_is_another_call() -> None:
    first = waiting("a")
    collector(coming(result("a")), OWN, first)
    later = waiting("a", batch=1, fields=put(first))

    (emission,) = collector(coming(result("a")), OWN, later)

    assert settled(emission)["row"]["turn_id"] == f"{RUN}:1"


def test_several_results_of_one_message_go_each_their_way() -> None:
    run = waiting("a", "b", "c")

    emissions = collector(coming(result("c"), result("x"), result("a")), OWN, run)

    assert [settled(emission)["answers"] for emission in emissions] == [["c"], ["a"]]
    assert [told["call_id"] for told in events(run)] == ["c", "a"]


@pytest.mark.parametrize(
    ("hop", "text"),
    [
        ({"error_code": "tool_timeout"}, "tool_timeout: the tool gave no result for this call"),
        ({}, "no_result: the tool gave no result for this call"),
    ],
)
def test_tool_that_gives_no_result_has_failed(hop: dict[str, Any], text: str) -> None:
    run = waiting("a")

    (emission,) = collector(coming(tool_call_id="a", **hop), OWN, run)

    assert settled(emission)["answers"] == ["a"]
    assert events(run) == [{"call_id": "a", "name": "read", "content": text, "is_error": True}]


def test_error_of_a_tool_is_a_result_like_any_other() -> None:
    run = waiting("a")

    (emission,) = collector(coming(result("a", "no such file", is_error=True)), OWN, run)

    assert settled(emission)["answers"] == ["a"]
    assert events(run)[0]["is_error"] is True


def test_result_of_a_tool_that_has_operations_is_no_word_of_the_store() -> None:
    run = waiting("a")

    (emission,) = collector(coming(result("a"), operation="settle", rows_affected=1), OWN, run)

    assert settled(emission)["answers"] == ["a"]


def test_long_result_is_cut_where_it_is_shown_and_kept_longer_in_its_row() -> None:
    own = ViewParams(max_result_bytes=20_000)
    run = waiting("a")

    (emission,) = collector(coming(result("a", "x" * 100_000)), own, run)

    (told,) = events(run)
    assert len(told["content"]) < 21_000
    (entry,) = [json.loads(settled(emission)["row"]["turn"])]
    assert 30_000 < len(entry["text"]) < 101_000
    assert "are left out" in told["content"]


@pytest.mark.parametrize(
    ("came", "next_id"), [("a", "c"), ("b", "d"), ("c", "e"), ("d", None), ("e", None)]
)
def test_call_that_has_come_to_its_end_lets_out_the_one_so_many_places_behind(
    came: str, next_id: str | None
) -> None:
    held = {"first": ["a", "b"], "later": [["c", "read", {}], ["d", "read", {}], ["e", "read", {}]]}
    run = waiting(*"abcde", fields={"waiting_calls": json.dumps(held)})

    emissions = collector(coming(result(came)), OWN, run)

    let_out = [e.hop["tool_call_id"] for e in emissions if e.hop["route"] == "next"]
    assert let_out == ([next_id] if next_id else [])


# All results of a batch.


def test_results_are_written_down_in_call_order_whatever_came_first() -> None:
    run = waiting("a", "b", "c")

    (emission,) = joined(run, result("c", "3"), result("a", "1"), result("b", "2"))

    assert [told["call_id"] for told in events(run, "tool.result")] == ["a", "b", "c"]
    assert [told["content"] for told in events(run, "tool.result")] == ["1", "2", "3"]
    assert all(event.durable for event in run.changes.events)
    (row,) = run.changes.rows
    assert (row.kind, [entry.id for entry in row.entries]) == ("results", ["a", "b", "c"])
    assert emission.hop == {"route": "boundary"}
    assert (put(run)["open_calls"], put(run)["phase"]) == ("[]", "boundary")
    assert run.changes.counts[("run", "tool_calls")] == 3


def test_next_batch_follows_once_its_own_is_complete() -> None:
    calls = [call("a"), call("b", batch=1), call("c", batch=1), call("d", batch=2)]
    run = waiting("a", calls=calls)

    (emission,) = joined(run, result("a"))

    assert emission.hop == {"route": "batch", "batch": 1}
    assert [entry.id for entry in emission.body.entries] == ["b", "c"]
    assert put(run)["batch"] == "1"
    assert "phase" not in put(run)


@pytest.mark.parametrize(
    ("before", "errors", "failures"),
    [(0, [True], 1), (4, [True, True], 6), (4, [True, False], 0), (2, [False, True], 1)],
)
def test_failures_in_a_row_are_counted_in_call_order(
    before: int, errors: list[bool], failures: int
) -> None:
    names = "abc"[: len(errors)]
    run = waiting(*names, failures=before)
    came = [result(name, is_error=error) for name, error in zip(names, errors, strict=True)]

    joined(run, *reversed(came))

    assert put(run)["failures"] == str(failures)


@pytest.mark.parametrize(
    "hop", [{"rows_affected": 0}, {"operation": "select"}, {"error_code": "x"}]
)
def test_store_that_has_not_completed_the_batch_is_no_word_of_it(hop: dict[str, Any]) -> None:
    run = waiting("a")
    given = {"rows_affected": 0, **hop} if "error_code" in hop else hop

    assert joined(run, result("a"), **given) == []
    assert not run.changes.any


def test_batch_that_is_complete_twice_is_gone_on_with_once() -> None:
    first = waiting("a")
    joined(first, result("a"))
    done = in_hand(turn=0, batch=0, fields={"calls": kept([call("a")])})
    later = waiting("b", batch=1)

    for run in (done, later):
        assert joined(run, result("a")) == []
        assert not run.changes.any


def test_warning_stands_behind_the_result_of_its_call_and_of_no_other() -> None:
    run = waiting("a", "b", calls=[call("a", note="made 3 times"), call("b")])

    joined(run, result("a", "found"), result("b", "found"))

    assert [told["content"] for told in events(run, "tool.result")] == [
        "found\n\n[made 3 times]", "found"
    ]  # fmt: skip
    assert run.changes.rows[0].texts == ["found\n\n[made 3 times]", "found"]


def test_results_of_a_batch_share_the_room_of_a_round_where_they_are_told() -> None:
    own = ViewParams(max_result_bytes=10_000, max_round_bytes=12_000)
    run = waiting("a", "b", "c")

    joined(run, *(result(name, "x" * 9_000) for name in "abc"), own=own)

    told = [len(event["content"]) for event in events(run, "tool.result")]
    assert max(told) < 4_200
    assert [len(text) for text in run.changes.rows[0].texts] == [9_000] * 3


def test_nothing_live_is_told_where_the_results_are_written_down() -> None:
    run = waiting("a")

    joined(run, result("a"))

    assert kinds(run) == ["tool.result"]
