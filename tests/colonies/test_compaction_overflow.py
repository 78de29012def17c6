"""A window that its model refuses as too long is folded once, and ends with a stop that says so."""

import pytest

from tests.colonies.folding import JOINS, Model, refused, thread


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
