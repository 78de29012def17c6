"""The compaction lane: when it folds, what it leaves of a thread, and what that costs."""

import json

import pytest

from colony.testing.harness import Harness, at_random
from tests.colonies.conftest import Colony
from tests.colonies.folding import (
    JOINS,
    TTL,
    Model,
    of_its_size,
    spent,
    summary,
    thread,
    waiting_at,
)
from tests.colonies.test_tool_loop import Races


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

    while not (folds := await waiting_at(harness, "/compact/emit")):
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


@pytest.mark.parametrize("join", JOINS)
async def test_questions_of_one_tree_are_counted_apart(begin, join):
    model = Model(rounds=4)
    colony, first = await begin(model, join=join)
    second = await colony.harness.ask("/capture", "And why?", ttl=TTL, context={"turn_id": "t-8"})

    await colony.harness.finish(at_random(1))

    asked = sorted(text.splitlines()[0] for text in model.folds)
    assert asked == ["The user asked: And why?", "The user asked: How often?"]
    rows = await thread(colony, first)
    assert [row["iter"] for row in rows if row["role"] == "summary"] == [2, 2]
    for trace in (first, second):
        assert await colony.fires(trace) == 4 + 1
        await colony.assert_clean(trace)


async def test_the_lane_pays_for_each_round_with_the_ttl_of_one(begin):
    model = Model(rounds=40)
    colony, trace = await begin(model, ttl=64, rounds=100)

    assert await colony.answer(trace) == "done"

    assert len(model.folds) == 10
    await colony.assert_clean(trace)


@pytest.mark.parametrize("join", JOINS)
async def test_rounds_that_have_left_the_view_are_folded_as_well(begin, join):
    model = Model(rounds=8)
    colony, trace = await begin(model, join=join, caps={"max_rounds": 2})

    assert await colony.answer(trace) == "done"

    first, second = model.folds
    assert [text.count("- result") for text in model.folds] == [3, 4]
    assert "left this view" not in first
    assert summary(1) in second
    assert max(len(request.messages) for request in model.asked) == 1 + 6
    await colony.assert_clean(trace)


async def test_the_size_of_the_last_prompt_may_decide(begin):
    model = Model(rounds=6, usage=of_its_size)
    colony, trace = await begin(model, measure="last", tokens=80, pause=1)

    assert await colony.answer(trace) == "done"

    # A system text, the question and three rounds are eight messages.
    assert [text.count("- result") for text in model.folds] == [3]


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
