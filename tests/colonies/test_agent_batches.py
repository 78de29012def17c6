"""The calls of one answer: in batches, each authorized as a whole, their results in call order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from colony.agent.events import Event
from colony.engine import Engine, Run
from colony.testing.harness import at_random
from tests.colonies.agent_colony import AGENT, Beside, calls, engine_beside, rounds, says

Start = Callable[..., Awaitable[Beside]]
SOON_S = 20.0
MIXED = ("look", "look", "change", "look")


@pytest.fixture
async def start(redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an agent with these values for its template, and an engine beside it."""
    async with AsyncExitStack() as stack:

        async def start(**handed: Any) -> Beside:
            return await stack.enter_async_context(engine_beside(redis_url, tmp_path, **handed))

        yield start


async def begun(engine: Engine) -> tuple[Run, "asyncio.Task[list[Event]]"]:
    """A run that has not moved, and all that it will tell from its beginning on."""
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    heard = asyncio.Event()

    async def listen() -> list[Event]:
        told: list[Event] = []
        async for frame in engine.feed.follow(session.id, run_id=run.id):
            if frame.phase == "mark":
                heard.set()
            elif frame.event is not None:
                told.append(frame.event)
                if frame.event.kind == "result":
                    break
        return told

    task = asyncio.create_task(listen())
    await asyncio.wait_for(heard.wait(), SOON_S)
    return run, task


def named(events: list[Event], kind: str) -> list[str]:
    return [str(event.payload["call_id"]) for event in events if event.kind == kind]


async def test_a_change_between_reads_waits_for_its_answer_and_is_made_once(start: Start) -> None:
    harness, engine = await start(script=rounds([MIXED]), permissions={"ask": ["change"]})
    run, telling = await begun(engine)
    await harness.finish()
    (ask,) = await engine.asks(run.session_id)
    async with await Engine.connect(engine.access.link.url, colony=harness.keys.name) as another:
        await another.attach(run.session_id, run.id).resolve(ask.ask.id, "allow_once")
    await harness.finish()

    events = await asyncio.wait_for(telling, SOON_S)

    order = [
        f"{event.kind} {event.payload['call_id']}"
        for event in events
        if event.kind in ("tool.call", "permission.ask", "approval", "tool.result")
    ]
    assert order == [
        *("tool.call c0-0", "tool.call c0-1", "tool.result c0-0", "tool.result c0-1"),
        *("tool.call c0-2", "permission.ask c0-2", "approval c0-2", "tool.result c0-2"),
        *("tool.call c0-3", "tool.result c0-3"),
    ]
    assert sorted(named(events, "tool.result.available")) == named(events, "tool.result")
    hops = await harness.hops(run.id)
    assert sum(hop.head.target == "/change" for hop in hops) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_results_are_told_as_they_come_and_kept_in_call_order(
    start: Start, seed: int
) -> None:
    names = ("look",) * 6
    harness, engine = await start(script=rounds([names]), max_parallel_tools=2)
    _, telling = await begun(engine)
    await harness.finish(at_random(seed))

    events = await asyncio.wait_for(telling, SOON_S)

    assert named(events, "tool.result") == [f"c0-{n}" for n in range(6)]
    assert sorted(named(events, "tool.result.available")) == named(events, "tool.result")
    kinds = [event.kind for event in events]
    last = len(kinds) - 1 - kinds[::-1].index("tool.result.available")
    assert last < kinds.index("tool.result")


async def test_a_call_that_is_made_again_and_again_is_warned_of_and_then_refused(
    start: Start,
) -> None:
    again = {"tool_calls": [{"id": "same", "name": "look", "arguments": {"n": 1}}]}
    harness, engine = await start(script=[*[again] * 5, says("Done.")])
    run, telling = await begun(engine)
    await harness.finish()

    events = await asyncio.wait_for(telling, SOON_S)

    results = [str(event.payload["content"]) for event in events if event.kind == "tool.result"]
    assert ["made 3 times" in text for text in results[:3]] == [False, False, True]
    assert "repeated_call" in results[4]
    hops = await harness.hops(run.id)
    assert sum(hop.head.target == "/look" for hop in hops) == 4


async def test_calls_beyond_what_one_answer_may_have_are_answered_and_not_made(
    start: Start,
) -> None:
    harness, engine = await start(script=rounds([("look",) * 3]), max_calls=2)
    _, telling = await begun(engine)
    await harness.finish()

    events = await asyncio.wait_for(telling, SOON_S)

    results = [event.payload for event in events if event.kind == "tool.result"]
    assert [result["is_error"] for result in results] == [False, False, True]
    assert "call_budget_exceeded" in str(results[2]["content"])


async def test_a_number_that_is_too_large_to_be_one_is_an_error_the_model_sees(
    start: Start,
) -> None:
    odd = calls("look")
    odd["tool_calls"][0]["arguments"] = '{"n": 1e999}'
    harness, engine = await start(script=[odd, says("Done.")])
    _, telling = await begun(engine)
    await harness.finish()

    events = await asyncio.wait_for(telling, SOON_S)

    (result,) = [event.payload for event in events if event.kind == "tool.result"]
    assert result["is_error"]
    assert events[-1].payload["stop"] == "end_turn"


async def test_a_call_that_is_cancelled_behind_its_result_is_an_error_in_the_record(
    start: Start,
) -> None:
    harness, engine = await start(script=rounds([("look", "look")]))
    run, telling = await begun(engine)
    while True:
        pending = await harness.pending()
        at_store = [d for d in pending if d.source == harness.keys.cell(f"{AGENT}/store")]
        if len(at_store) == len(pending) == 3:
            break
        await harness.step(next(d for d in pending if d not in at_store))
    await run.cancel()
    await harness.finish()

    events = await asyncio.wait_for(telling, SOON_S)

    assert len(named(events, "tool.result.available")) == 2
    results = [event.payload for event in events if event.kind == "tool.result"]
    assert [result["is_error"] for result in results] == [True, True]
    assert events[-1].payload["state"] == "cancelled"
