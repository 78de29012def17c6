from typing import Any

import pytest

from tests.workers.agent.in_hand import arriving, events, in_hand, kinds, put
from workers.agent.limits import Params, limits

OWN = Params()


def stop_of(own: Params = OWN, *, created_at: int = 1_000, **record: Any) -> Any:
    (emission,) = limits(arriving(created_at=created_at), own, in_hand(**record))
    return emission.hop.get("stop")


def test_turn_begins_where_nothing_is_met() -> None:
    run = in_hand(turn=3, turns=4)

    (emission,) = limits(arriving(), OWN, run)

    assert emission.hop == {"route": "turn", "turn": 4}
    assert put(run) == {"turn": "4", "phase": "model", "progress": "precommit"}
    assert run.changes.counts == {("run", "turns"): 1}
    assert [(event.kind, event.turn) for event in run.changes.events] == [("turn.start", 4)]


def test_steers_are_recorded_before_the_stop_check_and_even_if_the_run_stops() -> None:
    run = in_hand(steers=["wait", "no"], turns=2, limits={"max_turns": 2})

    (emission,) = limits(arriving(), OWN, run)

    assert emission.hop["stop"] == "max_turns"
    assert [row.texts for row in run.changes.rows] == [["wait"], ["no"]]
    assert events(run, "steer") == [{"text": "wait"}, {"text": "no"}]
    assert run.changes.steers_taken == 2


@pytest.mark.parametrize(
    ("counters", "bounds", "stop"),
    [
        ({"turns": 2}, {"max_turns": 2}, "max_turns"),
        ({"turns": 1}, {"max_turns": 2}, None),
        ({"tool_calls": 5}, {"max_tool_calls": 3}, "max_tool_calls"),
        ({"failures": 2}, {"max_consecutive_failures": 2}, "max_consecutive_failures"),
        ({"turns": 9, "tool_calls": 9}, {"max_turns": 9, "max_tool_calls": 9}, "max_turns"),
        ({"tool_calls": 9, "failures": 9}, {"max_tool_calls": 9}, "max_tool_calls"),
        ({"turns": 99_999, "tool_calls": 99_999, "failures": 99},
         {"max_turns": 0, "max_tool_calls": 0, "max_consecutive_failures": 0}, None),
        ({"turns": 2000}, {}, "max_turns"),
        ({"tool_calls": 8000}, {}, "max_tool_calls"),
        ({"failures": 5}, {}, "max_consecutive_failures"),
    ],
)  # fmt: skip
def test_limit_is_met_when_its_counter_reaches_it(
    counters: dict[str, int], bounds: dict[str, int], stop: str | None
) -> None:
    assert stop_of(**counters, limits=bounds) == stop


def test_limit_comes_before_the_budget() -> None:
    spent = {"usage": {"input_tokens": 60, "output_tokens": 50}}

    stop = stop_of(turns=1, limits={"max_turns": 1, "max_tokens": 100}, session=spent)

    assert stop == "max_turns"


@pytest.mark.parametrize(
    ("usage", "bounds", "created_at", "stop"),
    [
        ({"input_tokens": 60, "output_tokens": 50}, {"max_tokens": 100}, 0, "budget"),
        ({"input_tokens": 60, "output_tokens": 39}, {"max_tokens": 100}, 0, None),
        ({"cost_micro": 250_000}, {"max_cost": 0.25}, 0, "budget"),
        ({"cost_micro": 249_999}, {"max_cost": 0.25}, 0, None),
        ({}, {"max_wall_s": 2}, 2_000, "budget"),
        ({}, {"max_wall_s": 2}, 1_999, None),
        ({"input_tokens": 10**9, "cost_micro": 10**12}, {}, 10**9, None),
    ],
)
def test_budget_is_of_the_session_and_the_time_of_the_run(
    usage: dict[str, int], bounds: dict[str, Any], created_at: int, stop: str | None
) -> None:
    found = stop_of(created_at=created_at, session={"usage": usage}, limits=bounds)

    assert found == stop


def test_recorded_stop_comes_first() -> None:
    stop = stop_of(wrapping_up="max_tool_calls", turns=1, limits={"max_turns": 1})

    assert stop == "max_tool_calls"


@pytest.mark.parametrize(("own", "stop"), [({"max_turns": 3}, "max_turns"), ({}, None)])
def test_tree_only_lowers_what_the_session_says(own: dict[str, Any], stop: str | None) -> None:
    assert stop_of(Params(limits=own), turns=3, limits={"max_turns": 4}) == stop
    assert stop_of(Params(limits={"max_turns": 9}), turns=4, limits={"max_turns": 4}) == "max_turns"


def test_last_answer_is_one_more_turn_and_the_limit_stays_the_reason() -> None:
    run = in_hand(turns=2, turn=1, limits={"max_turns": 2})

    (emission,) = limits(arriving(), Params(last_answer=True), run)

    assert emission.hop == {"route": "turn", "turn": 2}
    assert put(run)["wrapping_up"] == "max_turns"
    assert kinds(run) == ["turn.start"]


@pytest.mark.parametrize(
    "record",
    [
        {"wrapping_up": "max_turns"},
        {"session": {"usage": {"input_tokens": 10}}, "limits": {"max_turns": 2, "max_tokens": 10}},
    ],
)
def test_last_answer_is_given_once_and_within_the_budget(record: dict[str, Any]) -> None:
    given = {"turns": 2, "limits": {"max_turns": 2}, **record}

    assert stop_of(Params(last_answer=True), **given) == "max_turns"
