"""Dispatch: what is written down of an answer, and where it leads."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from colony.agent.in_hand import RunInHand
from colony.body import Body, Entry
from colony.envelope import Emission, digest
from colony.topology.model import ToolDeclaration
from tests.workers.agent.in_hand import RUN, arriving, events, in_hand, kinds, put
from workers.agent.dispatch import ANSWER_NOW, GO_ON, Params, dispatch

OWN = Params()


def declared(name: str, *, read_only: bool) -> ToolDeclaration:
    return ToolDeclaration(
        name=name, description="", parameters={"type": "object"}, read_only=read_only
    )


TOOLS = {
    tool.name: tool
    for tool in (declared("read", read_only=True), declared("write", read_only=False))
}


def call(call_id: str, name: str = "read", arguments: Any = None, **of: Any) -> Entry:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments or {"of": call_id})
    text = json.dumps({"name": name, "arguments": given, **of})
    return Entry(origin="assistant", type="tool_call", id=call_id, text=text)


def says(text: str) -> Entry:
    return Entry.say("assistant", text)


def answered(
    *entries: Entry, own: Params = OWN, reason: str = "", hop: Any = None, **record: Any
) -> tuple[RunInHand, Emission]:
    """A run with this answer, and the one thing that follows."""
    made = any(entry.type == "tool_call" for entry in entries)
    finish = reason or ("tool_calls" if made else "stop")
    run = in_hand(tools=TOOLS, **{"turn": 0, **record})
    (emission,) = dispatch(arriving(*entries, finish_reason=finish, **(hop or {})), own, run)
    return run, emission


def batches(run: RunInHand) -> list[list[str]]:
    """The ids of all calls that the run keeps, batch by batch."""
    found: dict[int, list[str]] = {}
    for kept in json.loads(put(run)["calls"]):
        found.setdefault(kept["batch"], []).append(kept["id"])
    return [found[number] for number in sorted(found)]


def kept(run: RunInHand) -> list[dict[str, Any]]:
    return list(json.loads(put(run)["calls"]))


def sent(emission: Emission) -> list[str | None]:
    return [entry.id for entry in emission.body.entries]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ("rrwr", [["0", "1"], ["2"], ["3"]]),
        ("rrrr", [["0", "1", "2", "3"]]),
        ("ww", [["0"], ["1"]]),
        ("wrrw", [["0"], ["1", "2"], ["3"]]),
        ("r?r", [["0"], ["1"], ["2"]]),
        ("??", [["0"], ["1"]]),
        ("rwrrw?rr", [["0"], ["1"], ["2", "3"], ["4"], ["5"], ["6", "7"]]),
    ],
)
def test_reads_that_stand_together_are_a_batch_and_any_other_call_is_alone(
    names: str, groups: list[list[str]]
) -> None:
    tools = {"r": "read", "w": "write", "?": "nothing"}

    run, emission = answered(*(call(str(n), tools[name]) for n, name in enumerate(names)))

    assert batches(run) == groups
    assert sent(emission) == groups[0]
    assert emission.hop == {"route": "batch", "batch": 0}
    assert (put(run)["phase"], put(run)["batch"]) == ("tools", "0")


def test_batches_are_numbered_on_over_all_turns_of_a_run() -> None:
    run, emission = answered(call("a"), call("b", "write"), batch=4)

    assert [found["batch"] for found in kept(run)] == [5, 6]
    assert emission.hop["batch"] == 5


def test_unknown_tool_is_sent_on_as_it_was_called() -> None:
    run, emission = answered(call("a", "nothing"))

    assert kept(run) == [{"id": "a", "name": "nothing", "arguments": '{"of": "a"}', "batch": 0}]
    assert sent(emission) == ["a"]


def test_exact_repeat_of_a_call_is_dropped_from_the_record_as_well() -> None:
    run, emission = answered(call("a"), call("b"), call("a"))

    assert sent(emission) == ["a", "b"]
    (row,) = run.changes.rows
    assert [entry.id for entry in row.entries] == ["a", "b"]
    assert sum(run.changes.counts[key] for key in run.changes.counts if "repeat" in key[1]) == 2


@pytest.mark.parametrize("second", [call("a", arguments={"of": "another"}), call("a", "write")])
def test_id_that_repeats_with_another_call_is_replaced_and_each_is_answered(second: Entry) -> None:
    run, _ = answered(call("a"), second)

    first_id, second_id = (found["id"] for found in kept(run))
    assert first_id == "a"
    assert second_id == f"call_{digest([RUN, 0, 1])}"
    (row,) = run.changes.rows
    assert [entry.id for entry in row.entries] == [first_id, second_id]


@pytest.mark.parametrize("given", ["", "@question"])
def test_empty_id_is_replaced_by_one_that_a_repeat_of_the_step_derives_again(given: str) -> None:
    entries = [call(given), call(given, arguments={"of": "another"})]

    once, again = (kept(answered(*entries, turn=3)[0]) for _ in range(2))

    assert once == again
    assert [found["id"] for found in once] == [f"call_{digest([RUN, 3, n])}" for n in range(2)]


def test_derived_ids_of_two_turns_are_not_the_same() -> None:
    (first,), (second,) = (kept(answered(call(""), turn=turn)[0]) for turn in (0, 1))

    assert first["id"] != second["id"]


def repeated(count: int, **record: Any) -> dict[str, Any]:
    """What the run keeps of a call that was made so often before."""
    known = digest(["read", {"of": "a"}])
    run, _ = answered(call("a"), repeats={known: count} if count else {}, **record)
    assert run.changes.counts[("run", f"repeat:{known}")] == 1
    (found,) = kept(run)
    return found


@pytest.mark.parametrize(
    ("before", "note", "problem"),
    [(0, False, False), (1, False, False), (2, True, False), (3, True, False), (4, False, True),
     (9, False, True)],
)  # fmt: skip
def test_same_call_is_warned_of_at_the_third_and_refused_at_the_fifth(
    before: int, note: bool, problem: bool
) -> None:
    found = repeated(before)

    assert ("note" in found, "problem" in found) == (note, problem)
    told = found.get("note") or found.get("problem", "")
    assert (f"made {before + 1} times" in told) == (note or problem)


def test_same_call_is_the_same_however_its_arguments_are_written() -> None:
    written = ['{"of":"a","n":1}', '{"n": 1, "of": "a"}', '{ "of": "a", "n": 1 }']

    run, _ = answered(*(call(str(n), arguments=text) for n, text in enumerate(written)))

    assert [("note" in found) for found in kept(run)] == [False, False, True]
    (count,) = [by for (_, name), by in run.changes.counts.items() if name.startswith("repeat:")]
    assert count == 3


def test_call_that_is_refused_anyway_keeps_its_own_problem() -> None:
    known = digest(["read", {}])

    run, _ = answered(call("a", arguments="[1]"), repeats={known: 7})

    assert kept(run)[0]["problem"].startswith("invalid_arguments: ")


def test_calls_beyond_what_one_answer_may_have_have_a_problem_and_keep_their_place() -> None:
    run, emission = answered(*(call(str(n)) for n in range(4)), own=Params(max_calls=2))

    assert [found.get("problem", "").partition(":")[0] for found in kept(run)] == [
        "", "", "call_budget_exceeded", "call_budget_exceeded"
    ]  # fmt: skip
    assert sent(emission) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (call("a", arguments="[1]"), "invalid_arguments"),
        (call("a", arguments='{"of": "a', problem="truncated"), "truncated"),
        (
            Entry(origin="assistant", type="tool_call", id="a", text="no JSON"),
            "malformed_tool_call",
        ),
    ],
)
def test_call_that_cannot_be_read_is_kept_with_why(broken: Entry, code: str) -> None:
    run, _ = answered(broken)

    (found,) = kept(run)
    assert found["problem"].startswith(f"{code}: ")


# What ends a run, and what does not.


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("stop", "end_turn"), ("length", "length"), ("content_filter", "refusal")],
)
def test_text_without_calls_ends_the_run_for_the_reason_it_stopped(reason: str, stop: str) -> None:
    run, emission = answered(says("It is 42."), reason=reason)

    assert (emission.hop["route"], emission.hop["stop"]) == ("end", stop)
    assert [entry.text for entry in emission.body.entries] == ["It is 42."]
    assert put(run)["text"] == "It is 42."


@pytest.mark.parametrize(("reason", "stop"), [("length", "length"), ("content_filter", "refusal")])
def test_cut_or_refused_answer_without_a_text_is_not_told_to_go_on(reason: str, stop: str) -> None:
    run, emission = answered(reason=reason)

    assert emission.hop == {"route": "end", "stop": stop}
    assert "no_progress" not in kinds(run)


@pytest.mark.parametrize(
    ("nudges", "before", "text"), [(2, 0, GO_ON), (2, 1, ANSWER_NOW), (1, 0, ANSWER_NOW)]
)
@pytest.mark.parametrize("said", ["", " \n\u00a0\u3000"])
def test_answer_without_a_meaningful_text_is_told_to_go_on(
    nudges: int, before: int, text: str, said: str
) -> None:
    run, emission = answered(says(said), own=Params(nudges=nudges), nudges=before)

    assert emission.hop == {"route": "boundary"}
    assert run.changes.counts[("run", "nudges")] == 1
    assert run.changes.rows[-1].texts == [text]
    assert kinds(run)[-2:] == ["no_progress", "user_prompt"]
    assert events(run, "user_prompt") == [{"text": text, "synthetic": True}]
    assert "text" not in put(run)


@pytest.mark.parametrize(("nudges", "before"), [(2, 2), (1, 1), (0, 0), (-1, 0)])
def test_nudges_come_to_an_end(nudges: int, before: int) -> None:
    run, emission = answered(own=Params(nudges=nudges), nudges=before)

    assert emission.hop == {"route": "end", "stop": "no_progress"}
    assert kinds(run)[-1] == "no_progress"


def test_empty_answer_that_counts_as_an_error_is_told_to_go_on_as_well() -> None:
    _, emission = answered(reason="error", hop={"error_code": "empty_answer"})

    assert emission.hop == {"route": "boundary"}


def test_calls_that_a_cut_answer_had_are_not_made() -> None:
    run, emission = answered(says("It is"), call("a"), reason="length")

    assert (emission.hop["route"], emission.hop["stop"]) == ("end", "length")
    assert [entry.type for row in run.changes.rows for entry in row.entries] == ["text"]


@pytest.mark.parametrize("entries", [(says("So far: 41."),), (call("a"),), ()])
def test_answer_of_a_run_at_its_limit_ends_it_for_that_limit(entries: Sequence[Entry]) -> None:
    _, emission = answered(*entries, wrapping_up="max_turns")

    assert (emission.hop["route"], emission.hop["stop"]) == ("end", "max_turns")


def test_error_of_the_model_ends_the_run_and_says_what_may_be_tried_again() -> None:
    hop = {"error_code": "rate_limited", "retry_disposition": "retryable",
           "stream_progress": "precommit", "tokens_prompt": 7}  # fmt: skip

    run, emission = answered(says("never said"), reason="error", hop=hop)

    assert emission.hop == {
        "route": "end", "stop": "error", "error_code": "rate_limited",
        "retry_disposition": "retryable", "stream_progress": "precommit",
    }  # fmt: skip
    assert (run.changes.rows, kinds(run)) == ([], [])
    assert run.changes.counts[("session", "input_tokens")] == 7


def test_error_that_says_nothing_of_another_try_is_no_permission() -> None:
    _, emission = answered(reason="error")

    assert (emission.hop["error_code"], emission.hop["retry_disposition"]) == (
        "model_failed", "unknown")  # fmt: skip


@pytest.mark.parametrize(("folded", "route"), [(-1, "fold"), (0, "fold"), (1, "end")])
def test_window_that_was_too_long_is_folded_once_in_a_turn(folded: int, route: str) -> None:
    hop = {"error_code": "context_length"}

    _, emission = answered(reason="error", hop=hop, turn=1, compacted_turn=folded)

    assert emission.hop["route"] == route


# What is written down.


def test_answer_is_told_and_remembered_before_its_calls_are_made() -> None:
    run, _ = answered(says("I look."), call("a"), turn=2)

    assert kinds(run) == ["message.delta", "turn.end"]
    assert events(run, "message.delta") == [{"text": "I look.", "offset": 0}]
    (row,) = run.changes.rows
    assert (row.kind, row.run_id, row.turn) == ("assistant", RUN, 2)
    assert [entry.type for entry in row.entries] == ["text", "tool_call"]
    assert put(run)["progress"] == "complete"


def test_long_text_is_told_in_pieces_whose_offsets_count_code_points() -> None:
    text = "é" * 600_000 + "€" * 600_000

    run, _ = answered(says(text))

    deltas = [event for event in run.changes.events if event.kind == "message.delta"]
    assert all(len(json.loads(event.payload)["text"].encode()) <= 1 << 20 for event in deltas)
    assert len(deltas) > 1
    told = events(run, "message.delta")
    assert "".join(each["text"] for each in told) == text
    assert [each["offset"] for each in told] == [
        sum(len(each["text"]) for each in told[:n]) for n in range(len(told))
    ]


def test_answer_is_charged_to_the_run_and_to_its_session() -> None:
    own = Params(prices={"big": {"input": 3.0, "output": 15.0}})
    hop = {"tokens_prompt": 1000, "tokens_completion": 100, "model": "big"}

    run, _ = answered(says("Yes."), own=own, hop=hop, session={"window": 200_000})

    for scope in ("run", "session"):
        assert [run.changes.counts[(scope, name)] for name in
                ("input_tokens", "output_tokens", "cost_micro")] == [1000, 100, 4500]  # fmt: skip
    (end,) = events(run, "turn.end")
    assert end["usage"] == {"input_tokens": 1000, "output_tokens": 100}
    assert (end["estimated"], end["used"], end["window"]) == (False, 1000, 200_000)


def test_answer_that_nobody_counted_is_estimated_and_not_charged() -> None:
    run, _ = answered(says("12345678"), session={"used": 50})

    (end,) = events(run, "turn.end")
    assert (end["estimated"], end["usage"]) == (True, {"input_tokens": 50, "output_tokens": 2})
    assert run.changes.counts[("session", "input_tokens")] == 0


def test_time_that_the_model_took_is_told() -> None:
    entries = (says("Yes."),)
    run = in_hand(turn=0)
    body = Body.model_validate({"messages": [e.to_json() for e in entries],
                                "meta": {"latency_ms": 120}})  # fmt: skip
    envelope = arriving(*entries, finish_reason="stop").model_copy(update={"body": body})

    dispatch(envelope, OWN, run)

    assert events(run, "turn.end")[0]["duration_ms"] == 120
