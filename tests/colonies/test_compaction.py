"""The compaction lane: when it folds, what it leaves, what it costs, and how it always leaves."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from colony.testing.harness import Harness, at_random
from colony.topology.model import CellSpec
from colony.trees import shipped
from tests.colonies.conftest import Colony, with_params
from tests.colonies.fixture_lane import fixture_lane
from tests.colonies.folding import (
    JOINS,
    Model,
    folding_tree,
    laid_into,
    of_its_size,
    serving,
    summary,
)
from tests.colonies.test_tool_loop import Races

TTL = 400
ROLES = ("user", "assistant", "tool", "summary")


@pytest.fixture
async def begin(redis_url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts config/compaction with a model, and asks it; the colony and the trace."""
    async with AsyncExitStack() as stack:

        async def begin(model: Model, *, ttl: int = TTL, **options: Any) -> tuple[Colony, str]:
            stack.enter_context(serving(model))
            spec = folding_tree(tmp_path / "tree", model, **options)
            harness = await stack.enter_async_context(Harness(redis_url, spec))
            trace = await harness.ask("/capture", "How often?", ttl=ttl, context={"turn_id": "t-7"})
            return Colony(harness), trace

        yield begin


async def thread(colony: Colony, trace: str) -> list[dict[str, Any]]:
    rows = await colony.rows("thread", store="/store", trace_id=trace)
    return sorted(rows, key=lambda row: (row["iter"], ROLES.index(row["role"]), row["call_id"]))


async def spent(colony: Colony, trace: str) -> int:
    """Hops on the chain that came out at the sink, were nothing restored."""
    hops = await colony.harness.hops(trace)
    (answer,) = [hop for hop in hops if hop.head.target == "/sink"]
    parents = {hop.head.id: hop.head.parent_message_id for hop in hops}
    count, at = 0, answer.head.id
    while at in parents:
        count, at = count + 1, str(parents[at])
    return count


async def refused(colony: Colony, trace: str) -> dict[str, Any]:
    """The row of the one error that was kept."""
    (row,) = await colony.rows("errors", store="/store", trace_id=trace)
    return row


@pytest.mark.parametrize("join", JOINS)
async def test_four_rounds_are_folded_once_at_boundary_two(begin, join):
    model = Model(rounds=4)
    colony, trace = await begin(model, join=join)

    assert await colony.answer(trace) == "done"

    assert (len(model.asked), len(model.folds)) == (5, 1)
    assert [request.messages for request in model.asked[4:]] == [
        [
            {"role": "system", "content": "You use your tool in every round."},
            {"role": "user", "content": "How often?"},
            {"role": "assistant", "content": summary(1)},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call-3",
                        "type": "function",
                        "function": {"name": "calc", "arguments": '{"x": 1, "y": 1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call-3", "content": "42"},
        ]
    ]
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
async def test_a_fold_adds_one_row_and_leaves_every_other_byte_for_byte(begin, join):
    colony, trace = await begin(Model(rounds=4), join=join)
    harness = colony.harness

    while not (folds := await _waiting_at(harness, "/compact/emit")):
        await harness.step((await harness.pending())[0])
    before = await thread(colony, trace)
    await harness.step(folds[0])
    await harness.finish()

    after = await thread(colony, trace)
    assert [(row["iter"], row["role"]) for row in after] == [
        (0, "user"),
        (0, "assistant"),
        (0, "tool"),
        (1, "assistant"),
        (1, "tool"),
        (2, "assistant"),
        (2, "tool"),
        (2, "summary"),
        (3, "assistant"),
        (3, "tool"),
    ]
    assert "call-0" in after[1]["turn"]
    assert json.loads(after[7]["turn"]) == {
        "origin": "assistant",
        "type": "text",
        "text": summary(1),
    }
    assert [row for row in after if row["role"] != "summary"] == before


async def _waiting_at(harness: Harness, path: str) -> list[Any]:
    return [found for found in await harness.pending() if harness.owner(found) == path]


@pytest.mark.parametrize("join", JOINS)
async def test_eight_rounds_are_folded_twice_and_the_second_refines_the_first(begin, join):
    model = Model(rounds=8)
    colony, trace = await begin(model, join=join)

    assert await colony.answer(trace) == "done"

    first, second = model.folds
    lines = [line for line in second.splitlines() if line.strip()]
    assert "The user asked: How often?" in first
    assert "Running summary" not in first
    assert summary(1) in second
    assert "call-6" in second
    assert "call-7" not in second
    assert lines[-1] == "- result call-6: 42"
    rows = await thread(colony, trace)
    assert [row["iter"] for row in rows if row["role"] == "summary"] == [2, 6]
    assert len(model.asked[-1].messages) == 1 + 4
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
async def test_two_rounds_are_not_folded(begin, join):
    model = Model(rounds=2)
    colony, trace = await begin(model, join=join)

    assert await colony.answer(trace) == "done"

    assert model.folds == []
    assert {row["role"] for row in await thread(colony, trace)} == {"user", "assistant", "tool"}


@pytest.mark.parametrize(("rounds", "least"), [(4, 58), (8, 113)])
async def test_a_fold_costs_seven_hops(begin, rounds, least):
    colony, trace = await begin(Model(rounds=rounds))

    await colony.harness.run(Races(lambda _: True))

    assert await spent(colony, trace) == least


@pytest.mark.parametrize("late", [1, 2, 4])
async def test_each_round_that_its_tool_wins_costs_one_hop_more(begin, late):
    colony, trace = await begin(Model(rounds=4))

    await colony.harness.run(Races(lambda number: number >= late))

    assert await spent(colony, trace) == 58 + late


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rounds", "least"), [(4, 58), (8, 113)])
async def test_hops_of_any_order_are_those_of_the_rounds_that_a_tool_won(
    begin, rounds, least, seed
):
    model = Model(rounds=rounds, calls=1 + seed)
    colony, trace = await begin(model)

    await colony.harness.finish(at_random(seed))

    assert least <= await spent(colony, trace) <= least + rounds
    assert len(model.folds) == rounds // 4


FAILED = [
    {"status": 500, "body": {"error": {"message": "broken"}}},
    {"status": 401, "body": {"error": {"message": "no"}}},
    {"text": ""},
    {"text": " \n\t"},
    {"text": "cut off", "finish_reason": "length"},
    {"tool_calls": [{"id": "call-9", "name": "calc", "arguments": {}}]},
    {"text": "Let me see.", "tool_calls": [{"id": "call-9", "name": "calc", "arguments": {}}]},
    {"text": summary(1) + "and so on " * 200},
]


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(
    "fold",
    FAILED,
    ids=["error", "refused", "empty", "blank", "cut", "call", "call_and_text", "no_shorter"],
)
async def test_a_fold_that_comes_to_nothing_sends_the_window_on(begin, join, fold):
    model = Model(rounds=4, fold=fold)
    colony, trace = await begin(model, join=join)

    assert await colony.answer(trace) == "done"

    assert (len(model.asked), len(model.folds)) == (5, 1)
    assert len(model.asked[-1].messages) == 1 + 9
    assert len(await thread(colony, trace)) == 9
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("lost_at", ["/compact/prep", "/compact/condense", "/compact/emit"])
async def test_a_fold_that_is_lost_is_gone_on_without(begin, join, lost_at):
    model = Model(rounds=4)
    colony, trace = await begin(model, join=join)
    harness = colony.harness

    while not (lost := await _waiting_at(harness, lost_at)):
        await harness.step((await harness.pending())[0])
    await harness.drop(lost[0])

    assert await colony.answer(trace) == "done"
    assert len(model.asked[-1].messages) == 1 + 9
    assert len(await thread(colony, trace)) == 9
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
async def test_a_summary_that_the_store_refuses_is_gone_on_without(begin, join):
    """Its row is of another table, which the store does not have."""
    model = Model(rounds=4)
    colony, trace = await begin(model, join=join)
    (emit,) = [cell for cell in colony.harness.spec.cells if cell.path == "/compact/emit"]
    await _republished(colony.harness, emit, {**emit.params, "table": "nowhere"})

    assert await colony.answer(trace) == "done"

    assert (len(model.asked), len(model.folds)) == (5, 1)
    assert len(model.asked[-1].messages) == 1 + 9
    await colony.assert_clean(trace)


async def test_a_summary_whose_answer_is_lost_is_gone_on_with(begin):
    model = Model(rounds=4)
    colony, trace = await begin(model)
    harness = colony.harness

    while not await _waiting_at(harness, "/compact/emit"):
        await harness.step((await harness.pending())[0])
    while not (lost := await _waiting_at(harness, "/tool-loop/collector")):
        await harness.step((await harness.pending())[0])
    await harness.drop(lost[0])

    assert await colony.answer(trace) == "done"
    assert len(model.asked[-1].messages) == 1 + 4
    await colony.assert_clean(trace)


async def test_a_fold_that_came_to_nothing_is_not_tried_again_at_once(begin):
    model = Model(rounds=8, fold={"text": ""})
    colony, trace = await begin(model, measure="last", tokens=5)

    assert await colony.answer(trace) == "done"

    folded_at = [text.count("- result") for text in model.folds]
    assert folded_at == [1, 5]


@pytest.mark.parametrize("join", JOINS)
async def test_nothing_to_fold_sends_the_window_on(begin, join):
    """An edge that lets too few rounds through leads to the same exit."""
    model = Model(rounds=3)
    colony, trace = await begin(model, join=join, tokens=10, keep=1)
    (prep,) = [cell for cell in colony.harness.spec.cells if cell.path == "/compact/prep"]
    await _republished(colony.harness, prep, {**prep.params, "keep_rounds": 9})

    assert await colony.answer(trace) == "done"

    assert model.folds == []
    assert len(model.asked[-1].messages) == 1 + 7
    await colony.assert_clean(trace)


async def _republished(harness: Harness, cell: CellSpec, params: dict[str, Any]) -> None:
    """The tree goes on with other params of a cell."""
    changed = with_params(harness.spec, cell.path, params)
    await harness.publication.publish(changed)
    await harness.publication.refresh()


async def test_a_provider_that_reports_no_usage_never_folds_and_stalls_nothing(begin):
    model = Model(rounds=5, usage=lambda request: None)
    colony, trace = await begin(model)

    assert await colony.answer(trace) == "done"

    assert model.folds == []
    await colony.assert_clean(trace)


async def test_the_size_of_the_last_prompt_may_decide(begin):
    model = Model(rounds=6, usage=of_its_size)
    colony, trace = await begin(model, measure="last", tokens=80, pause=1)

    assert await colony.answer(trace) == "done"

    # A system text, the question and three rounds are eight messages.
    assert [text.count("- result") for text in model.folds] == [3]


@pytest.mark.parametrize("join", JOINS)
async def test_a_window_the_model_refuses_is_folded_once_and_the_question_goes_on(begin, join):
    model = Model(rounds=4, refuses=lambda request: len(request.messages) > 1 + 7)
    colony, trace = await begin(model, join=join, tokens=1_000_000)

    assert await colony.answer(trace) == "done"

    # The call that was refused, and the same again in four messages.
    assert [len(request.messages) for request in model.asked] == [2, 4, 6, 8, 10, 5]
    assert len(model.folds) == 1
    rows = await thread(colony, trace)
    assert [row["iter"] for row in rows if row["role"] == "summary"] == [2]
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
async def test_each_overflow_is_met_by_one_fold(begin, join):
    model = Model(rounds=9, refuses=lambda request: len(request.messages) > 1 + 7)
    colony, trace = await begin(model, join=join, tokens=1_000_000)

    assert await colony.answer(trace) == "done"

    assert len(model.folds) == 3
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("fold", [None, {"text": ""}], ids=["folded", "not_folded"])
async def test_a_window_that_stays_too_long_ends_with_a_stop_that_says_so(begin, join, fold):
    model = Model(fold=fold, refuses=lambda request: len(request.messages) > 1 + 3)
    colony, trace = await begin(model, join=join, tokens=1_000_000)

    answer = await colony.answer(trace)

    assert "outgrown" in answer
    assert len(model.folds) == 1
    assert [len(request.messages) for request in model.asked] == [2, 4, 6, 5 if fold is None else 6]
    assert (await refused(colony, trace))["kind"] == "context_overflow"
    (output,) = await colony.harness.outputs(trace)
    assert output["hop"]["error_code"] == "context_overflow"
    await colony.assert_clean(trace)


async def test_a_question_too_long_by_itself_is_not_folded(begin):
    model = Model(refuses=lambda request: True)
    colony, trace = await begin(model)

    assert "outgrown" in await colony.answer(trace)

    assert (len(model.asked), model.folds) == (1, [])
    assert (await refused(colony, trace))["kind"] == "context_overflow"


async def test_a_summary_that_is_handled_twice_is_one_row(begin):
    colony, trace = await begin(Model(rounds=4))
    harness = colony.harness

    while not (folds := await _waiting_at(harness, "/compact/emit")):
        await harness.step((await harness.pending())[0])
    await harness.decide(folds[0])
    await harness.step(folds[0])
    (written,) = await _waiting_at(harness, "/colony")
    await harness.step(written)
    (insert,) = await _waiting_at(harness, "/store")
    await harness.decide(insert)
    await harness.finish()

    rows = await thread(colony, trace)
    assert sum(row["role"] == "summary" for row in rows) == 1
    await colony.assert_clean(trace)


async def test_what_was_counted_outlives_every_process(begin, redis_url):
    model = Model(rounds=4)
    colony, trace = await begin(model)
    harness = colony.harness
    while len(model.asked) < 3:
        await harness.step((await harness.pending())[0])

    async with Harness(redis_url, harness.spec) as other:
        other._pending = harness._pending
        assert await Colony(other).answer(trace) == "done"

    assert (len(model.asked), len(model.folds)) == (5, 1)


async def test_lane_is_that_of_its_model(begin):
    """Two code cells and a model between them, and two ways for what the collector fires."""
    colony, _ = await begin(Model())
    cells = {cell.path: cell.cell.type for cell in colony.harness.spec.cells}
    ways = [e for e in colony.harness.spec.edges if e.source == "/tool-loop/collector"]

    assert {path: cells[path] for path in cells if path.startswith("/compact/")} == {
        "/compact/prep": "code",
        "/compact/condense": "llm",
        "/compact/emit": "code",
    }
    assert sorted(e.target for e in ways if e.target in ("/llm", "/compact/prep")) == [
        "/compact/prep",
        "/llm",
    ]


@pytest.mark.parametrize(
    ("fold", "rows", "messages"), [(None, 10, 4), ({"text": ""}, 9, 9)], ids=["folded", "refired"]
)
async def test_the_lane_of_the_model_works_with_the_same_handlers(redis_url, fold, rows, messages):
    model = Model(rounds=4, fold=fold)
    with serving(model):
        async with Harness(redis_url, fixture_lane(model.base_url)) as harness:
            colony = Colony(harness)
            trace = await harness.ask("/capture", "How often?", ttl=200)
            assert await colony.answer(trace, Races(lambda _: True)) == "done"

            assert (len(model.asked), len(model.folds)) == (5, 1)
            assert len(await thread(colony, trace)) == rows
            assert len(model.asked[-1].messages) == 1 + messages
            # An exit asks for the thread without an insert before.
            assert await spent(colony, trace) == (58 if fold is None else 56)
            await colony.assert_clean(trace)


@pytest.mark.parametrize("tree", ["research", "research-settle"])
async def test_lane_is_laid_into_the_research_trees(redis_url, tmp_path, tree):
    model = Model(rounds=0)
    with serving(model):
        spec = laid_into(tmp_path, tree, {"tokens": 40})
        environment = {
            "COLONY_PROVIDER": "openai",
            "COLONY_MODEL": "m",
            "COLONY_BASE_URL": model.base_url,
            "COLONY_CORPUS": str(shipped("research", "documents")),
        }
        async with Harness(redis_url, spec, environment=environment) as harness:
            colony = Colony(harness)
            session = {"session_id": "s"}
            before = await harness.ask("/prep", "And before?", context=session)
            assert await colony.answer(before) == "done"
            model.rounds = 8
            trace = await harness.ask("/prep", "How often?", context=session)
            assert await colony.answer(trace) == "done"

            rows = await colony.rows("thread", trace_id=trace)
            assert [row["iter"] for row in rows if row["role"] == "summary"] == [2, 6]
            told = [message["content"] for message in model.asked[-1].messages[1:5]]
            assert told == ["And before?", "done", "How often?", summary(2)]
            assert not any("before" in text or "done" in text for text in model.folds)
            assert summary(1) in model.folds[1]
            await colony.assert_clean(trace)


async def test_shipped_tree_folds_without_a_key(start):
    colony = await start("compaction")

    trace = await colony.harness.ask("/capture", "What does it say?")
    assert await colony.answer(trace) == "The tool says 42, every time."

    rows = [(row["iter"], row["role"]) for row in await thread(colony, trace)]
    assert [row for row in rows if row[1] == "summary"] == [(2, "summary")]
    assert max(rows) == (6, "tool")
    await colony.assert_clean(trace)
