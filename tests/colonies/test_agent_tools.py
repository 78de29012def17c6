"""Tools of an agent at their worst: calls that must not meet, and results that are none."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from colony.body import Entry
from colony.testing.harness import Harness, at_random
from tests.colonies.agent_colony import ROOT, AgentColony, agent_tree, calls, rounds, says
from tests.colonies.cells import with_params
from workers.agent.view import paired

Start = Callable[..., Awaitable[AgentColony]]
TOOLS = ("/look", "/change", "/break")


@pytest.fixture
async def start(redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an agent with these values for its template; `odd` are its tools by what they do."""
    async with AsyncExitStack() as stack:

        async def start(*, odd: dict[str, str] | None = None, **handed: Any) -> AgentColony:
            spec = agent_tree(tmp_path, **handed)
            for path, handler in (odd or {}).items():
                spec = with_params(spec, path, {"handler": f"tests.colonies.odd_tools:{handler}"})
            harness = Harness(redis_url, spec, root=ROOT)
            await stack.enter_async_context(harness)
            return AgentColony(harness)

        yield start


async def results(colony: AgentColony, run: str) -> list[dict[str, Any]]:
    """What every result in the log says, in order."""
    return [dict(e.payload) for e in await colony.events(run) if e.kind == "tool.result"]


async def entries(colony: AgentColony) -> Sequence[Entry]:
    return [entry for row in await colony.history() for entry in row.entries]


async def out_at_once(colony: AgentColony, seed: int) -> list[set[str]]:
    """Which calls were out together, at every moment of a run that is played to its end."""
    choose, moments = at_random(seed), list[set[str]]()
    sources = [colony.harness.keys.cell(path) for path in TOOLS]
    while waiting := await colony.harness.pending():
        out = {str(d.head.hop["tool_call_id"]) for d in waiting if d.source in sources}
        moments.append(out)
        # The tools answer last, so that as many are out as can be.
        await colony.harness.step(
            choose([d for d in waiting if d.source not in sources] or waiting)
        )
    return moments


@pytest.mark.parametrize("seed", range(3))
async def test_calls_that_may_change_something_are_never_out_together(
    start: Start, seed: int
) -> None:
    colony = await start(script=rounds([["change", "nothing", "change", "change"], ["change"]]))
    run = await colony.begin()

    moments = await out_at_once(colony, seed)

    assert max(map(len, moments)) == 1
    assert [told["call_id"] for told in await results(colony, run)] == [
        "c0-0", "c0-1", "c0-2", "c0-3", "c1-0"
    ]  # fmt: skip


async def test_a_change_between_reads_is_out_alone(start: Start) -> None:
    colony = await start(script=rounds([["look", "look", "change", "look", "look"]]))
    await colony.begin()

    moments = [out for out in await out_at_once(colony, 1) if out]

    assert {frozenset(out) for out in moments if len(out) > 1} == {
        frozenset({"c0-0", "c0-1"}), frozenset({"c0-3", "c0-4"})
    }  # fmt: skip
    assert {"c0-2"} in moments


@pytest.mark.parametrize(
    ("handler", "told", "is_error"),
    [
        ("raises", "the disk is on fire", True),
        ("torn", "the result of this call was lost", True),
        ("huge", "are left out", False),
        ("silent", "the result of this call was lost", True),
        ("twice", "number 0", False),
        ("astray", "number 1", False),
    ],
)
@pytest.mark.parametrize("tool", ["look", "change"])
async def test_run_goes_on_whatever_a_tool_gives(
    start: Start, tool: str, handler: str, told: str, is_error: bool
) -> None:
    colony = await start(script=rounds([[tool], ["break"]]), odd={f"/{tool}": handler})

    run = await colony.run()

    first, second = await results(colony, run)
    assert (told in first["content"], first["is_error"]) == (True, is_error)
    assert second["call_id"] == "c1-0"
    assert (await colony.result(run))["stop"] == "end_turn"
    hops = await colony.harness.hops(run)
    assert sum(hop.head.target == f"/{tool}" for hop in hops) == 1
    assert paired([*await entries(colony)])


async def test_run_goes_on_however_often_its_tools_raise(start: Start) -> None:
    colony = await start(script=rounds([["look", "change"]] * 5), odd={"/look": "raises"})

    run = await colony.run()

    assert [told["is_error"] for told in await results(colony, run)] == [True, False] * 5
    assert (await colony.result(run))["stop"] == "end_turn"


async def test_ids_that_two_calls_of_an_answer_share_are_told_apart(start: Start) -> None:
    made = calls("look", "change", "look", "look")
    for call in made["tool_calls"]:
        call["id"] = "same"
    made["tool_calls"][3] = dict(made["tool_calls"][0])
    colony = await start(script=[made, says("Done.")])

    run = await colony.run()

    told = await results(colony, run)
    assert len({each["call_id"] for each in told}) == len(told) == 3
    assert [each["name"] for each in told] == ["look", "change", "look"]
    assert [each["is_error"] for each in told] == [False] * 3
    assert paired([*await entries(colony)])
    hops = await colony.harness.hops(run)
    assert sum(hop.head.target in TOOLS for hop in hops) == 3


async def test_model_that_names_its_calls_alike_in_every_turn_is_answered_each_time(
    start: Start,
) -> None:
    script = rounds([["look"], ["look"], ["change"]])
    for answer in script[:3]:
        answer["tool_calls"][0]["id"] = "call_0"
    colony = await start(script=script)

    run = await colony.run()

    told = await results(colony, run)
    assert [(each["call_id"], each["is_error"]) for each in told] == [("call_0", False)] * 3
    assert '"n": "1-0"' in told[1]["content"]
    assert (await colony.result(run))["stop"] == "end_turn"


async def test_a_run_goes_on_however_many_results_are_lost(start: Start) -> None:
    colony = await start(script=rounds([["look", "change"]] * 7), odd={"/look": "silent"})

    run = await colony.run()

    assert (await colony.result(run))["text"] == "Done."
    assert [told["is_error"] for told in await results(colony, run)] == [True, False] * 7


async def test_a_change_that_no_replica_would_remember_is_not_made(
    redis_url: str, tmp_path: Path
) -> None:
    spec = agent_tree(tmp_path, script=rounds([["change", "look"]]))
    settings = spec.settings.model_copy(update={"durability": "replica"})
    harness = Harness(redis_url, spec.model_copy(update={"settings": settings}), root=ROOT)
    async with harness:
        colony = AgentColony(harness)
        run = await colony.run()

        (change, look) = await results(colony, run)
        assert "outcome_unknown" in change["content"]
        assert not look["is_error"]
        assert (await colony.result(run))["text"] == "Done."
