from typing import Any

import pytest

from colony.agent.changes import End
from colony.body import Entry
from colony.envelope import Envelope
from tests.workers.agent.in_hand import arriving, events, in_hand, put
from workers.agent.finish import finish
from workers.toolloop.params import HandlerParams

OWN = HandlerParams()


def end_of(envelope: Envelope, **record: Any) -> End | None:
    run = in_hand(**record)
    finish(envelope, OWN, run)
    return run.changes.end


def test_end_says_the_last_meaningful_text_and_leads_to_a_boundary() -> None:
    run = in_hand(text="It is 42.")

    (emission,) = finish(arriving(route="end", stop="no_progress"), OWN, run)

    assert run.changes.end == End("no_progress", text="It is 42.")
    assert run.changes.end.state == "completed"
    assert emission.hop == {"route": "boundary"}


def test_error_says_what_went_wrong_and_whether_another_try_may_help() -> None:
    hop = {"stop": "error", "error_code": "rate_limited", "retry_disposition": "retryable"}

    end = end_of(arriving(route="end", stream_progress="precommit", **hop), text="before")

    assert end == End("error", "before", "rate_limited", "retryable", "precommit")
    assert end.state == "failed"


def test_error_that_says_nothing_of_another_try_is_no_permission() -> None:
    end = end_of(arriving(route="end", stop="error", stream_progress="nonsense"))

    assert end == End("error", "", "error", "unknown", "unknown")


def test_unknown_stop_is_an_error() -> None:
    assert end_of(arriving(stop="whatever")) == End("error", "", "whatever", "unknown", "unknown")


def test_hook_changes_the_answer() -> None:
    end = end_of(arriving(Entry.say("assistant", "It is XX.")), text="It is 42.")

    assert end == End("end_turn", text="It is XX.")


def test_hook_withholds_the_answer() -> None:
    run = in_hand(text="It is 42.")

    finish(arriving(Entry.say("assistant", "It is 42."), error_code="secret"), OWN, run)

    assert run.changes.end == End("hook", text="", error="secret")
    assert events(run, "hook") == [{"seam": "at_end", "decision": "refused", "text": "secret"}]


@pytest.mark.parametrize("stop", ["end_turn", "no_progress", "error", "length"])
def test_reason_of_a_last_answer_stays_the_limit(stop: str) -> None:
    end = end_of(arriving(stop=stop), wrapping_up="max_turns", text="So far: 41.")

    assert end == End("max_turns", text="So far: 41.")


def test_retry_that_has_no_budget_is_still_owed() -> None:
    before = {"disposition": "retryable", "progress": "precommit", "retry_pending": True}
    run = in_hand(kind="retry", session=before)

    finish(arriving(stop="budget"), OWN, run)

    assert run.changes.end == End("budget")
    assert put(run, "session") == {
        "state": "idle",
        "retry_pending": "1",
        "disposition": "retryable",
        "progress": "precommit",
    }


@pytest.mark.parametrize("record", [{"kind": "prompt"}, {"kind": "retry", "turns": 1}])
def test_other_runs_without_budget_owe_nothing(record: dict[str, Any]) -> None:
    run = in_hand(**record)

    finish(arriving(stop="budget"), OWN, run)

    assert put(run, "session") == {}
