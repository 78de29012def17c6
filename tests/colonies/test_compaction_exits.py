"""The compaction lane always leaves: what is no summary, and what is lost, fails no question."""

import pytest

from tests.colonies.folding import JOINS, Model, republished, summary, thread, waiting_at

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


async def test_a_model_that_writes_nothing_makes_no_summary(begin):
    """Whoever lays a model into the lane that only quotes."""
    model = Model(rounds=4)
    colony, trace = await begin(model)
    (condense,) = [c for c in colony.harness.spec.cells if c.path == "/compact/condense"]
    await republished(colony.harness, condense, {"provider": "extractive", "state_scope": "trace"})

    assert await colony.answer(trace) == "done"

    assert len(model.asked[-1].messages) == 1 + 9
    assert "summary" not in {row["role"] for row in await thread(colony, trace)}
    assert "empty_answer" in {h.head.hop.get("dropped") for h in await colony.harness.hops(trace)}


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
    await republished(colony.harness, prep, {**prep.params, "keep_rounds": 9})

    assert await colony.answer(trace) == "done"

    assert model.folds == []
    assert len(model.asked[-1].messages) == 1 + 7
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
async def test_a_summary_that_the_store_refuses_is_gone_on_without(begin, join):
    """Its row is of another table, which the store does not have."""
    model = Model(rounds=4)
    colony, trace = await begin(model, join=join)
    (emit,) = [cell for cell in colony.harness.spec.cells if cell.path == "/compact/emit"]
    await republished(colony.harness, emit, {**emit.params, "table": "nowhere"})

    assert await colony.answer(trace) == "done"

    assert (len(model.asked), len(model.folds)) == (5, 1)
    assert len(model.asked[-1].messages) == 1 + 9
    await colony.assert_clean(trace)


async def test_a_provider_that_reports_no_usage_never_folds_and_stalls_nothing(begin):
    model = Model(rounds=5, usage=lambda request: None)
    colony, trace = await begin(model)

    assert await colony.answer(trace) == "done"

    assert model.folds == []
    await colony.assert_clean(trace)


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": "10"}, {"prompt_tokens": 0}, {"prompt_tokens": None}, {}], ids=str
)
async def test_a_usage_that_says_nothing_folds_nothing(begin, usage):
    model = Model(rounds=5, usage=lambda request: usage)
    colony, trace = await begin(model)

    assert await colony.answer(trace) == "done"

    assert model.folds == []
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("lost_at", ["/compact/prep", "/compact/condense", "/compact/emit"])
async def test_a_fold_that_is_lost_is_gone_on_without(begin, join, lost_at):
    model = Model(rounds=4)
    colony, trace = await begin(model, join=join)
    harness = colony.harness

    while not (lost := await waiting_at(harness, lost_at)):
        await harness.step((await harness.pending())[0])
    await harness.drop(lost[0])

    assert await colony.answer(trace) == "done"
    assert len(model.asked[-1].messages) == 1 + 9
    assert len(await thread(colony, trace)) == 9
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
async def test_a_fold_that_is_lost_while_it_reads_is_gone_on_without(begin, join):
    model = Model(rounds=4)
    colony, trace = await begin(model, join=join, caps={"max_rounds": 2})
    harness = colony.harness

    while not await waiting_at(harness, "/compact/prep"):
        await harness.step((await harness.pending())[0])
    await harness.step((await waiting_at(harness, "/compact/prep"))[0])
    while not (lost := await waiting_at(harness, "/compact/prep")):
        await harness.step((await harness.pending())[0])
    await harness.drop(lost[0])

    assert await colony.answer(trace) == "done"
    assert model.folds == []
    await colony.assert_clean(trace)


async def test_a_summary_whose_answer_is_lost_is_gone_on_with(begin):
    model = Model(rounds=4)
    colony, trace = await begin(model)
    harness = colony.harness

    while not await waiting_at(harness, "/compact/emit"):
        await harness.step((await harness.pending())[0])
    while not (lost := await waiting_at(harness, "/tool-loop/collector")):
        await harness.step((await harness.pending())[0])
    await harness.drop(lost[0])

    assert await colony.answer(trace) == "done"
    assert len(model.asked[-1].messages) == 1 + 4
    await colony.assert_clean(trace)


async def test_a_summary_that_is_handled_twice_is_one_row(begin):
    colony, trace = await begin(Model(rounds=4))
    harness = colony.harness

    while not (folds := await waiting_at(harness, "/compact/emit")):
        await harness.step((await harness.pending())[0])
    await harness.decide(folds[0])
    await harness.step(folds[0])
    (written,) = await waiting_at(harness, "/colony")
    await harness.step(written)
    (insert,) = await waiting_at(harness, "/store")
    await harness.decide(insert)
    await harness.finish()

    rows = await thread(colony, trace)
    assert sum(row["role"] == "summary" for row in rows) == 1
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("number", [0, 3])
async def test_a_round_that_lost_one_of_its_results_is_counted_and_folded(begin, join, number):
    model = Model(rounds=5, calls=4)
    colony, trace = await begin(model, join=join)
    harness = colony.harness

    while not (calls := await waiting_at(harness, "/tool-loop/calc")) or (
        len(model.asked) <= number
    ):
        await harness.step((await harness.pending())[0])
    await harness.drop(calls[0])

    assert await colony.answer(trace) == "done"
    assert len(model.folds) == 1
    assert model.folds[0].count("was lost") == (number == 0)
    assert len(model.asked[4].messages) == 1 + 1 + 1 + 5
    await colony.assert_clean(trace)
