import pytest

from colony.body import Entry
from tests.workers.agent.in_hand import (
    arriving,
    asked,
    calling,
    events,
    in_hand,
    kinds,
    put,
    results,
    said,
)
from workers.agent.intake import intake
from workers.toolloop.params import HandlerParams

OWN = HandlerParams()
PROMPT = Entry.say("user", "What is the tide?")


async def test_prompt_is_recorded_and_goes_to_the_first_boundary() -> None:
    run = in_hand()

    (emission,) = await intake(arriving(PROMPT), OWN, run)

    assert emission.hop == {"route": "boundary"}
    (row,) = run.changes.rows
    assert (row.kind, row.run_id, row.texts) == ("user", "run-1", ["What is the tide?"])
    assert kinds(run) == ["session.title", "user_prompt"]
    assert events(run, "user_prompt") == [{"text": "What is the tide?", "synthetic": False}]
    assert put(run, "session") == {"title": "What is the tide?"}


async def test_title_is_set_once_and_of_120_code_points() -> None:
    first, second = in_hand(), in_hand(session={"title": "before"})

    await intake(arriving(Entry.say("user", " \n" + "🌊 a" * 80)), OWN, first)
    await intake(arriving(PROMPT), OWN, second)

    assert len(put(first, "session")["title"]) == 120
    assert "session.title" not in kinds(second)


@pytest.mark.parametrize(
    ("stop", "wording"),
    [
        ("cancelled", "the run was cancelled before"),
        ("error", "the run failed before"),
        ("max_turns", "the run ended before"),
    ],
)
async def test_calls_without_results_are_answered_in_order_before_the_prompt(
    stop: str, wording: str
) -> None:
    rows = [asked("one"), calling("a", "b", "c"), results("a")]
    run = in_hand(rows, session={"stop": stop})

    await intake(arriving(PROMPT), OWN, run)

    owed, prompt = run.changes.rows
    assert [(entry.id, entry.is_error) for entry in owed.entries] == [("b", True), ("c", True)]
    assert all(text.startswith(wording) for text in owed.texts)
    assert all("nothing is known" in text for text in owed.texts)
    assert prompt.kind == "user"


async def test_repaired_history_is_repaired_no_further() -> None:
    rows = [asked("one"), calling("a", "b"), results("a"), results("b")]
    run = in_hand(rows)

    await intake(arriving(PROMPT), OWN, run)

    assert [row.kind for row in run.changes.rows] == ["user"]


async def test_results_of_an_earlier_turn_answer_no_call_of_a_later_one() -> None:
    rows = [calling("a"), results("a"), calling("a")]
    run = in_hand(rows)

    await intake(arriving(PROMPT), OWN, run)

    assert [entry.id for entry in run.changes.rows[0].entries] == ["a"]


async def test_retry_repairs_and_adds_no_message() -> None:
    run = in_hand([asked("one"), calling("a")], kind="retry", session={"stop": "error"})

    (emission,) = await intake(arriving(), OWN, run)

    assert emission.hop == {"route": "boundary"}
    assert [row.kind for row in run.changes.rows] == ["results"]
    assert kinds(run) == []


async def test_permanent_failure_before_is_noticed() -> None:
    run = in_hand([said("x")], session={"disposition": "permanent", "error": "invalid_request"})

    await intake(arriving(PROMPT), OWN, run)

    assert kinds(run)[0] == "recover_notice"
    assert "invalid_request" in events(run, "recover_notice")[0]["text"]


async def test_refused_prompt_is_not_recorded_and_ends_the_run() -> None:
    run = in_hand()
    refusal = Entry.say("assistant", "no such questions")

    (emission,) = await intake(arriving(refusal, error_code="refused"), OWN, run)

    assert emission.hop == {"route": "end", "stop": "hook", "error_code": "refused"}
    assert run.changes.rows == []
    assert events(run) == [
        {"seam": "before_prompt", "decision": "refused", "text": "no such questions"}
    ]


@pytest.mark.parametrize("text", ["", " \u00a0\u3000\n"])
async def test_prompt_that_says_nothing_is_an_error(text: str) -> None:
    run = in_hand()

    (emission,) = await intake(arriving(Entry.say("user", text)), OWN, run)

    assert (emission.hop["stop"], emission.hop["error_code"]) == ("error", "invalid_input")
    assert run.changes.rows == []


async def test_what_a_hook_sends_twice_is_taken_in_once() -> None:
    run = in_hand(fields={"taken_in": "1"})

    assert await intake(arriving(PROMPT), OWN, run) == []
    assert not run.changes.any


async def test_compaction_goes_to_the_window() -> None:
    run = in_hand([asked("one")], kind="compact")

    (emission,) = await intake(arriving(), OWN, run)

    assert emission.hop == {"route": "fold"}
    assert run.changes.rows == []
