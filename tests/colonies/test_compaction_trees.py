"""The compaction lane in trees: the one that ships, the research trees, and that of its model."""

import pytest

from colony.testing.harness import Harness
from colony.trees import shipped
from tests.colonies.conftest import Colony
from tests.colonies.fixture_lane import fixture_lane
from tests.colonies.folding import Model, laid_into, serving, spent, summary, thread
from tests.colonies.test_tool_loop import Races


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


async def test_shipped_tree_answers_where_its_fold_fails(start):
    failing = [{"error": "timeout"}]
    colony = await start("compaction", model="/compact/condense", script=failing)

    trace = await colony.harness.ask("/capture", "What does it say?")
    assert await colony.answer(trace) == "The tool says 42, every time."

    assert "summary" not in {row["role"] for row in await thread(colony, trace)}
    dropped = [hop.head.hop.get("dropped") for hop in await colony.harness.hops(trace)]
    assert [why for why in dropped if why] == ["timeout"]
    await colony.assert_clean(trace)
