"""The agent as a whole: what a run says, when it stops, and what its session remembers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from colony.agent.asks import Decision
from colony.body import Entry
from colony.runs.asks import RunAsks
from colony.testing.harness import Harness, at_random
from colony.topology.load import load
from colony.trees import shipped
from tests.colonies.agent_colony import AGENT, AgentColony, agent_tree, calls, rounds, says
from workers.agent.view import paired

Start = Callable[..., Awaitable[AgentColony]]
ROOT = Path(__file__).resolve().parents[2]
BEGINNING = ("session.init", "session.title", "user_prompt")
EMPTY = {"error": "empty_answer"}


@pytest.fixture
async def start(redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an agent with these values for its template."""
    async with AsyncExitStack() as stack:

        async def start(**handed: Any) -> AgentColony:
            harness = Harness(redis_url, agent_tree(tmp_path, **handed), root=ROOT)
            await stack.enter_async_context(harness)
            return AgentColony(harness)

        yield start


def texts_of(entries: tuple[Entry, ...]) -> list[str]:
    return [entry.text or "" for entry in entries]


async def test_run_without_tools_says_what_the_model_says(start: Start) -> None:
    colony = await start(script=[says("It is 42.", prompt_tokens=10, completion_tokens=5)])

    run = await colony.run("What is it?")

    assert await colony.kinds() == [
        "session.init", "session.title", "user_prompt",
        "turn.start", "message.delta", "turn.end", "result",
    ]  # fmt: skip
    result = await colony.result(run)
    assert (result["stop"], result["state"], result["text"]) == (
        "end_turn", "completed", "It is 42.")  # fmt: skip
    assert result["usage"] == {"input_tokens": 10, "output_tokens": 5, "cost_micro": 0}
    assert [row.kind for row in await colony.history()] == ["user", "assistant"]
    assert (await colony.session()).state == "completed"
    assert await colony.harness.letters() == []


async def test_events_of_a_turn_with_a_tool_come_in_order(start: Start) -> None:
    colony = await start(script=rounds([["look"]]))

    run = await colony.run()

    events = await colony.events(run)
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    kinds = [event.kind for event in events if event.kind not in BEGINNING]
    assert kinds == [
        "turn.start", "turn.end", "tool.call", "tool.result",
        "turn.start", "message.delta", "turn.end", "result",
    ]  # fmt: skip
    assert [event.turn for event in events if event.kind == "turn.start"] == [0, 1]


async def test_runs_of_a_session_follow_each_other_in_its_log(start: Start) -> None:
    colony = await start(script=[says("Yes.")])

    first, second = await colony.run(), await colony.run()

    events = await colony.events()
    assert [*dict.fromkeys(event.run_id for event in events)] == [first, second]
    assert ":" not in first
    for run in (first, second):
        own = [event.seq for event in events if event.run_id == run]
        assert own == [*range(1, len(own) + 1)]


async def test_unknown_tool_is_an_error_that_the_model_sees(start: Start) -> None:
    colony = await start(script=rounds([["nothing"]]))

    run = await colony.run()

    (told,) = [e for e in await colony.events(run) if e.kind == "tool.result"]
    assert told.payload["is_error"] is True
    assert (await colony.result(run))["stop"] == "end_turn"
    row = next(row for row in await colony.history() if row.kind == "results")
    assert row.entries[0].is_error is True


@pytest.mark.parametrize("seed", range(4))
async def test_results_are_in_call_order_whatever_comes_first(start: Start, seed: int) -> None:
    colony = await start(script=rounds([["look"] * 5, ["look", "change", "look"]]))

    run = await colony.run(choose=at_random(seed))

    told = [e.payload["call_id"] for e in await colony.events(run) if e.kind == "tool.result"]
    assert told == [*(f"c0-{n}" for n in range(5)), *(f"c1-{n}" for n in range(3))]
    assert (await colony.result(run))["tool_calls"] == 8


async def test_turns_are_limited(start: Start) -> None:
    colony = await start(script=[calls("look", number=n) for n in range(5)])

    run = await colony.run(limits={"max_turns": 2})

    result = await colony.result(run)
    assert (result["stop"], result["state"], result["turns"]) == ("max_turns", "completed", 2)
    assert await colony.asked(run) == 2
    assert [row.kind for row in await colony.history()][-2:] == ["assistant", "results"]


async def test_calls_of_a_turn_all_run_before_their_limit_stops_the_run(start: Start) -> None:
    colony = await start(script=rounds([["look"] * 5, ["look"]]))

    run = await colony.run(limits={"max_tool_calls": 3})

    result = await colony.result(run)
    assert (result["stop"], result["tool_calls"]) == ("max_tool_calls", 5)


async def test_failures_count_in_a_row(start: Start) -> None:
    script = rounds([["break"], ["look"], ["break"], ["nothing"], ["look"]])
    colony = await start(script=script)

    run = await colony.run(limits={"max_consecutive_failures": 2})

    result = await colony.result(run)
    assert (result["stop"], result["turns"]) == ("max_consecutive_failures", 4)


async def test_budget_is_checked_at_the_boundary_and_holds_for_the_session(start: Start) -> None:
    script = [calls("look", prompt_tokens=60, completion_tokens=50), says("never")]
    colony = await start(script=script)

    first = await colony.run(limits={"max_tokens": 100})
    second = await colony.run(limits={"max_tokens": 100})

    assert (await colony.result(first))["stop"] == "budget"
    assert [row.kind for row in await colony.history()] == [
        "user", "assistant", "results", "user"
    ]  # fmt: skip
    assert (await colony.result(second))["stop"] == "budget"
    assert (await colony.asked(first), await colony.asked(second)) == (1, 0)


async def test_prices_make_a_budget_of_money(start: Start) -> None:
    script = [calls("look", prompt_tokens=1_000, completion_tokens=100), says("never")]
    colony = await start(
        script=script, model="small", prices={"small": {"input": 1.0, "output": 10.0}}
    )

    run = await colony.run(limits={"max_cost": 0.002})

    assert (await colony.result(run))["stop"] == "budget"
    assert (await colony.result(run))["usage"]["cost_micro"] == 2_000


async def test_model_that_says_nothing_is_nudged_twice(start: Start) -> None:
    colony = await start(script=[EMPTY])

    run = await colony.run()

    result = await colony.result(run)
    assert (result["stop"], result["state"]) == ("no_progress", "completed")
    assert await colony.asked(run) == 3
    notes = [row for row in await colony.history() if row.kind == "note"]
    assert len(notes) == 2
    assert notes[0].texts != notes[1].texts
    assert "no_progress" in await colony.kinds(run)


async def test_nudged_model_goes_on_and_the_note_stays(start: Start) -> None:
    colony = await start(script=[EMPTY, says("Here it is.")])

    run = await colony.run()

    assert (await colony.result(run))["stop"] == "end_turn"
    assert await colony.asked(run) == 2
    assert "note" in [row.kind for row in await colony.history()]


@pytest.mark.parametrize("text", [" \n\t", "\u00a0", "\u3000\u00a0"])
async def test_blanks_are_no_answer(start: Start, text: str) -> None:
    colony = await start(script=[says(text)], nudges=-1)

    run = await colony.run()

    assert (await colony.result(run))["stop"] == "no_progress"
    assert await colony.asked(run) == 1


async def test_one_nudge_asks_for_an_answer_now(start: Start) -> None:
    twice = await start(script=[EMPTY])
    await twice.run()
    final = [row.texts for row in await twice.history() if row.kind == "note"][-1]
    once = await start(script=[EMPTY], nudges=1)

    run = await once.run()

    assert await once.asked(run) == 2
    assert [row.texts for row in await once.history() if row.kind == "note"] == [final]


@pytest.mark.parametrize(("reason", "stop"), [("length", "length"), ("content_filter", "refusal")])
async def test_text_that_was_cut_or_withheld_ends_the_run_so(
    start: Start, reason: str, stop: str
) -> None:
    colony = await start(script=[{"text": "It is", "finish_reason": reason}])

    run = await colony.run()

    assert (await colony.result(run))["stop"] == stop
    assert await colony.asked(run) == 1


async def test_text_beside_calls_is_kept_and_the_run_goes_on(start: Start) -> None:
    colony = await start(script=[{**calls("look"), "text": "I look."}, EMPTY], nudges=0)

    run = await colony.run()

    said = next(row for row in await colony.history() if row.kind == "assistant")
    assert "I look." in texts_of(said.entries)
    result = await colony.result(run)
    assert (result["stop"], result["text"]) == ("no_progress", "I look.")


async def test_usage_that_nobody_counts_is_estimated_and_costs_nothing(start: Start) -> None:
    colony = await start(script=[says("It is 42.")])

    run = await colony.run()

    (end,) = [event for event in await colony.events(run) if event.kind == "turn.end"]
    assert end.payload["estimated"] is True
    assert (await colony.session()).usage.input_tokens == 0


async def test_error_of_the_model_fails_the_run(start: Start) -> None:
    colony = await start(script=[{"error": "rate_limited"}])

    run = await colony.run()

    result = await colony.result(run)
    assert (result["stop"], result["state"], result["error"]) == (
        "error", "failed", "rate_limited")  # fmt: skip
    assert (await colony.session()).state == "failed"


async def test_last_answer_at_a_limit_is_made_without_tools(start: Start) -> None:
    script = [calls("look"), says("So far: 41.")]
    colony = await start(script=script, last_answer=True)

    run = await colony.run(limits={"max_turns": 1})

    result = await colony.result(run)
    assert (result["stop"], result["text"], result["turns"]) == ("max_turns", "So far: 41.", 2)
    assert (await colony.asked(run), await colony.asked(run, "closing")) == (1, 1)


async def test_steer_is_taken_up_at_the_next_boundary(start: Start) -> None:
    colony = await start(script=rounds([["look"]]))
    run = await colony.begin()
    await colony.steer("And hurry.")

    await colony.harness.finish()

    assert "steer" in await colony.kinds(run)
    assert [row.kind for row in await colony.history()][:2] == ["user", "user"]


async def test_run_that_is_steered_in_its_last_moment_goes_on(start: Start) -> None:
    colony = await start(script=[says("One."), says("Two.")])
    run = await colony.begin()
    while (await colony.harness.pending())[0].source != colony.harness.keys.cell(f"{AGENT}/finish"):
        await colony.harness.step((await colony.harness.pending())[0])
    await colony.steer("More.")

    await colony.harness.finish()

    result = await colony.result(run)
    assert (result["text"], result["turns"]) == ("Two.", 2)
    assert [row.kind for row in await colony.history()] == [
        "user", "assistant", "user", "assistant"
    ]  # fmt: skip


async def test_long_run_is_compacted_and_goes_on(start: Start) -> None:
    script = rounds([["look"]] * 8)
    colony = await start(script=script, window=700)

    run = await colony.run("What is the first thing?")

    kinds = await colony.kinds(run)
    assert (await colony.result(run))["text"] == "Done."
    at = kinds.index("compaction")
    assert kinds[at + 1] == "compaction.archive"
    assert kinds[at - 1] == "turn.start"
    sizes = next(e.payload for e in await colony.events(run) if e.kind == "compaction")
    assert sizes["after"] < sizes["before"]
    session = await colony.session()
    assert 0 < session.used < 700 == session.window


async def test_summary_of_a_model_stands_for_the_oldest_part(start: Start) -> None:
    fold = [says("GOAL\nLook on.")]
    colony = await start(
        script=rounds([["look"]] * 8), window=700, fold_provider="scripted", fold_script=fold
    )

    run = await colony.run()

    assert (await colony.result(run))["text"] == "Done."
    assert await colony.asked(run, "condense") >= 1
    row = next(row for row in await colony.history() if row.kind == "summary")
    assert row.texts == ["GOAL\nLook on."]


async def test_fold_is_paid_for(start: Start) -> None:
    fold = [says("GOAL\nLook on.", prompt_tokens=100, completion_tokens=10)]
    colony = await start(
        script=rounds([["look"]] * 8), window=700, fold_provider="scripted", fold_script=fold,
        fold_model="folder", prices={"folder": {"input": 1.0, "output": 10.0}},
    )  # fmt: skip

    run = await colony.run()

    folds = await colony.asked(run, "condense")
    usage = (await colony.record(run)).usage
    assert folds >= 1
    assert (usage.input_tokens, usage.cost_micro) == (100 * folds, 200 * folds)


async def test_fold_that_fails_changes_nothing(start: Start) -> None:
    colony = await start(
        script=rounds([["look"]] * 8), window=700, fold_provider="scripted",
        fold_script=[{"error": "timeout"}],
    )  # fmt: skip

    run = await colony.run()

    assert (await colony.result(run))["text"] == "Done."
    assert "summary" not in [row.kind for row in await colony.history()]
    assert "compaction" not in await colony.kinds(run)


async def test_session_is_compacted_on_demand(start: Start) -> None:
    colony = await start(script=rounds([["look"]] * 6))
    await colony.run()

    run = await colony.run(kind="compact")

    assert await colony.kinds(run) == ["session.init", "compaction", "compaction.archive", "result"]
    assert (await colony.result(run))["stop"] == "compacted"
    assert await colony.asked(run) == 0


async def test_session_with_nothing_to_gain_is_not_compacted(start: Start) -> None:
    colony = await start(script=[says("Yes.")])
    await colony.run()

    run = await colony.run(kind="compact")

    assert await colony.kinds(run) == ["session.init", "result"]
    assert [row.kind for row in await colony.history()] == ["user", "assistant"]


async def test_next_run_remembers_the_one_before(start: Start) -> None:
    colony = await start(script=[says("You said: {question}")])
    await colony.run("One.")

    run = await colony.run("Two.")

    assert (await colony.result(run))["text"] == "You said: Two."
    assert [row.kind for row in await colony.history()] == ["user", "assistant"] * 2
    assert (await colony.session()).title == "One."


@pytest.mark.parametrize("victim", ["look", "permit", "model", "limits", "store"])
async def test_run_ends_whatever_is_lost_on_the_way(start: Start, victim: str) -> None:
    """A delivery that is lost for good, and nothing else, at each kind of cell."""
    colony = await start(script=rounds([["look", "look"], ["look"]]))
    run = await colony.begin()
    source = colony.harness.keys.cell(f"/{victim}" if victim == "look" else f"{AGENT}/{victim}")
    while pending := await colony.harness.pending():
        if pending[0].source == source:
            await colony.harness.drop(pending[0])
            break
        await colony.harness.step(pending[0])

    await colony.harness.finish()

    result = await colony.result(run)
    state = (await colony.session()).state
    assert result["state"] == state
    if victim in ("look", "store"):
        assert (result["stop"], result["text"]) == ("end_turn", "Done.")
    else:
        assert (result["stop"], result["error"]) == ("error", "stalled")


async def test_next_run_answers_the_calls_that_a_failed_one_has_left(start: Start) -> None:
    colony = await start(script=[calls("look", "change"), says("never")])
    failed = await colony.begin("One.")
    while pending := await colony.harness.pending():
        if pending[0].source == colony.harness.keys.cell(f"{AGENT}/permit"):
            await colony.harness.drop(pending[0])
            break
        await colony.harness.step(pending[0])
    await colony.harness.finish()
    assert (await colony.result(failed))["stop"] == "error"

    await colony.run("Two.")

    rows = await colony.history()
    assert [row.kind for row in rows][:4] == ["user", "assistant", "results", "user"]
    assert [entry.id for entry in rows[2].entries] == ["c0-0", "c0-1"]
    assert all("the run failed before" in text for text in rows[2].texts)


async def test_prompt_that_a_cell_of_the_user_refuses_is_not_recorded(start: Start) -> None:
    colony = await start(script=[says("never")], seams={"before_prompt": "refuse"})

    run = await colony.run()

    result = await colony.result(run)
    assert (result["stop"], result["error"], result["text"]) == ("hook", "refused", "")
    assert await colony.kinds(run) == ["session.init", "hook", "result"]
    assert await colony.history() == []
    assert await colony.asked(run) == 0


async def test_cells_of_the_user_change_the_prompt_and_the_answer(start: Start) -> None:
    seams = {"before_prompt": "loudly", "at_end": "loudly"}
    colony = await start(script=[says("{question} indeed")], seams=seams)

    run = await colony.run("what?")

    assert (await colony.result(run))["text"] == "WHAT? INDEED"
    assert [row.texts for row in await colony.history()] == [["WHAT?"], ["WHAT? indeed"]]


async def test_answer_that_a_cell_of_the_user_refuses_is_withheld(start: Start) -> None:
    colony = await start(script=[says("It is 42.")], seams={"at_end": "refuse"})

    run = await colony.run()

    result = await colony.result(run)
    assert (result["stop"], result["error"], result["text"]) == ("hook", "refused", "")


@pytest.mark.parametrize("cell", ["limits", "model", "permit", "collector", "finish"])
async def test_cancelled_run_ends_at_once_and_the_session_goes_on(start: Start, cell: str) -> None:
    colony = await start(script=rounds([["look", "change"]]))
    run = await colony.begin("One.")
    source = colony.harness.keys.cell(f"{AGENT}/{cell}")
    while (pending := await colony.harness.pending())[0].source != source:
        await colony.harness.step(pending[0])

    assert await colony.cancel(run)
    assert not await colony.cancel(run)
    await colony.harness.finish()
    after = await colony.run("Two.")

    assert (await colony.result(run))["stop"] == "cancelled"
    assert (await colony.result(after))["stop"] == "end_turn"
    entries = [entry for row in await colony.history() for entry in row.entries]
    assert paired(entries)


async def test_run_is_the_same_where_every_step_is_lost_once_before_its_commit(
    start: Start,
) -> None:
    colony = await start(script=rounds([["look", "look"], ["change", "look"]]))
    run = await colony.begin()

    while pending := await colony.harness.pending():
        await colony.harness.decide(pending[-1])
        await colony.harness.step(pending[-1])

    result = await colony.result(run)
    assert (result["stop"], result["turns"], result["tool_calls"]) == ("end_turn", 3, 4)
    kinds = await colony.kinds(run)
    assert (kinds.count("tool.call"), kinds.count("tool.result")) == (4, 4)
    assert kinds.count("turn.start") == kinds.count("turn.end") == 3


@pytest.mark.parametrize(
    ("verdict", "told"), [("allow_once", "changed"), ("deny", "denied by user: not today")]
)
async def test_call_waits_for_a_verdict_and_the_run_goes_on(
    start: Start, verdict: Any, told: str
) -> None:
    colony = await start(script=rounds([["look", "change"]]), permissions={"allow": ["look"]})
    run = await colony.run()
    assert (await colony.session()).state == "awaiting"
    asks = RunAsks(colony.harness.link, colony.harness.keys)
    (asked,) = await asks.pending_of(await colony.session())

    await asks.decide(asked, Decision(verdict=verdict, reason="not today"), token="t")
    await colony.harness.finish()

    assert (await colony.result(run))["stop"] == "end_turn"
    kinds = await colony.kinds(run)
    (call, ask, approval) = (
        [at for at, kind in enumerate(kinds) if kind == wanted][-1]
        for wanted in ("tool.call", "permission.ask", "approval")
    )
    assert call < ask < approval
    results = [e.payload for e in await colony.events(run) if e.kind == "tool.result"]
    assert told in results[-1]["content"]
    assert results[-1]["is_error"] is (verdict == "deny")


async def test_assistant_answers_from_its_documents_without_a_key(redis_url: str) -> None:
    root = shipped("assistant")
    spec = load(root, environment={}).publishable()
    async with Harness(redis_url, spec, root=root, environment={}) as harness:
        colony = AgentColony(harness)

        run = await colony.run("Why does high water come later from one day to the next?")

        result = await colony.result(run)
        assert (result["stop"], result["state"]) == ("end_turn", "completed")
        assert "50 minutes later from one day to the next" in result["text"]
        assert result["tool_calls"] >= 2
        assert await harness.letters() == []
