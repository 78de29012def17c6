import json
from collections.abc import Sequence
from typing import Any

import pytest

from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.schema import Row
from tests.workers.agent.in_hand import RUN, arriving, in_hand, put
from workers.agent.closer import closer
from workers.toolloop.params import ThreadParams
from workers.toolloop.rows import assistant_row, tool_row

OWN = ThreadParams()
TURN = f"{RUN}:2"
CALLS = [
    Entry(origin="assistant", type="tool_call", id=one, text='{"name": "file", "arguments": "{}"}')
    for one in ("a", "b")
]
OPEN = (("a", "file"), ("b", "file"))
KEPT = json.dumps(
    [{"id": call.id, "name": "file", "arguments": "{}", "batch": 2} for call in CALLS]
    + [{"id": "z", "name": "file", "arguments": "{}", "batch": 3}]
)


def replied(rows: Sequence[Row], **context: Any) -> Envelope:
    reply = Entry.result("c-op", json.dumps(list(rows)))
    return arriving(reply, operation="select", context={"store_origin": "closer", **context})


def working(**record: Any) -> Any:
    return in_hand(
        **{"phase": "tools", "batch": 2, "open_calls": OPEN, "fields": {"calls": KEPT}, **record}
    )


def operation(emission: Emission) -> Any:
    return json.loads(emission.body.entries[0].text or "")


def test_quiet_run_whose_tools_work_is_looked_up() -> None:
    (emission,) = closer(arriving(route="quiet", error_code="message_timeout"), OWN, working())

    assert emission.hop == {"route": "look", "lost": "message_timeout"}
    assert operation(emission)["where"] == {"turn_id": TURN}


def test_lost_calls_are_answered_and_the_batch_is_said_again() -> None:
    rows: list[Row] = [
        {**assistant_row(TURN, 2, CALLS), "fired": 0},
        tool_row(TURN, 2, Entry.result("a", "found")),
    ]

    said, lost = closer(replied(rows, lost="delivery_limit"), OWN, working())

    assert said.hop["route"] == "cstore"
    assert operation(said)["expects"] == ["a", "b"]
    assert lost.hop["route"] == "cstore"
    assert operation(lost)["answers"] == ["b"]
    result = json.loads(operation(lost)["row"]["turn"])
    assert (result["id"], result["is_error"]) == ("b", True)
    assert result["text"].startswith("delivery_limit: the result of this call was lost")


def test_batch_that_is_complete_and_won_by_nobody_is_claimed() -> None:
    rows: list[Row] = [
        {**assistant_row(TURN, 2, CALLS), "fired": 0},
        *(tool_row(TURN, 2, Entry.result(one, "found")) for one in ("a", "b")),
    ]

    (said,) = closer(replied(rows), OWN, working())

    assert said.hop["route"] == "cstore"


def test_batch_that_the_store_does_not_have_is_taken_from_the_run() -> None:
    said, *lost = closer(replied([]), OWN, working())

    assert operation(said)["expects"] == ["a", "b"]
    assert [operation(one)["answers"] for one in lost] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("record", "disposition"),
    [({"phase": "model", "progress": "precommit"}, "retryable"), ({"open_calls": ()}, "retryable")],
)
def test_quiet_run_without_working_tools_ends(record: dict[str, Any], disposition: str) -> None:
    (emission,) = closer(arriving(route="quiet"), OWN, working(**record))

    assert emission.hop == {
        "route": "end",
        "stop": "error",
        "error_code": "stalled",
        "retry_disposition": disposition,
        "stream_progress": record.get("progress", "unknown"),
    }


def test_what_a_handler_got_wrong_is_no_reason_to_try_again() -> None:
    hop = {"route": "quiet", "error_code": "handler_failed"}

    (emission,) = closer(arriving(**hop), OWN, working(phase="boundary"))

    assert emission.hop["retry_disposition"] == "unknown"
    assert emission.hop["error_code"] == "handler_failed"


def test_batch_that_was_won_and_lost_afterwards_ends_the_run() -> None:
    rows: list[Row] = [{**assistant_row(TURN, 2, CALLS), "fired": 1}]

    (emission,) = closer(replied(rows, lost="handler_failed"), OWN, working())

    assert (emission.hop["route"], emission.hop["error_code"]) == ("end", "handler_failed")


def test_store_that_gives_no_rows_ends_the_run() -> None:
    reply = arriving(error_code="store_timeout", context={"lost": "stalled"})

    (emission,) = closer(reply, OWN, working())

    assert (emission.hop["route"], emission.hop["error_code"]) == ("end", "stalled")


@pytest.mark.parametrize(
    ("kind", "hop"),
    [("prompt", {"route": "turn"}), ("compact", {"route": "end", "stop": "compacted"})],
)
def test_fold_that_was_lost_is_done_without(kind: str, hop: dict[str, Any]) -> None:
    quiet = {"route": "quiet", "error_code": "delivery_limit"}
    run = working(kind=kind, phase="model", turn=4)

    (emission,) = closer(arriving(dead_target="/assistant/condense", **quiet), OWN, run)

    assert emission.hop == hop
    assert put(run) == {"compacted_turn": "4"}
