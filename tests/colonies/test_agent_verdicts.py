"""Verdicts on asks: by whoever, from wherever, however soon, and whatever is lost meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from colony.agent.events import Event
from colony.engine import Engine, Run
from colony.errors import AskNotPending
from colony.testing.harness import Harness
from tests.colonies.agent_colony import ROOT, Beside, agent_tree, calls, engine_beside, rounds, says

Start = Callable[..., Awaitable[Beside]]
SOON_S = 20.0
ASKING = {"ask": ["change", "look"]}


@pytest.fixture
async def start(redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an agent with these values for its template, and an engine beside it."""
    async with AsyncExitStack() as stack:

        async def start(**handed: Any) -> Beside:
            return await stack.enter_async_context(
                engine_beside(redis_url, tmp_path, **{"permissions": ASKING, **handed})
            )

        yield start


async def begun(engine: Engine) -> Run:
    return await engine.run((await engine.create_session("assistant")).id, "Go.")


async def told(engine: Engine, run: Run, kind: str) -> list[Event]:
    """The events of one kind in the log of a run."""
    frames = engine.follow(run.session_id, run_id=run.id, follow=False)
    events = [frame.event async for frame in frames if frame.event is not None]
    return [event for event in events if event.kind == kind]


async def handled(harness: Harness, run: Run, cell: str = "/change") -> int:
    return sum(hop.head.target == cell for hop in await harness.hops(run.id))


async def test_a_verdict_that_comes_as_soon_as_the_ask_is_told_is_not_lost(start: Start) -> None:
    """Each ask is answered while the step that asked is still being committed by its worker."""
    harness, engine = await start(script=rounds([["change"]] * 12))
    run = await begun(engine)
    answered: list[str] = []

    async def approve() -> None:
        async with aclosing(run.events()) as events:
            async for event in events:
                if event.kind == "permission.ask":
                    answered.append(str(event.payload["ask_id"]))
                    await run.resolve(answered[-1], "allow_once")

    approving = asyncio.create_task(approve())
    async with asyncio.timeout(SOON_S):
        while not approving.done():
            await harness.finish()
            await asyncio.wait([approving], timeout=0.01)
    await approving

    assert len(answered) == len(set(answered)) == 12
    assert await handled(harness, run) == 12
    assert len(await told(engine, run, "approval")) == 12
    assert (await run.result()).stop == "end_turn"


async def test_a_verdict_may_come_before_anybody_has_read_of_the_ask(start: Start) -> None:
    harness, engine = await start(script=rounds([["change"]]))
    run = await begun(engine)
    while not (asked := await engine.asks(run.session_id)):
        await harness.step((await harness.pending())[0])

    await run.resolve(asked[0].ask.id, "allow_once")
    await harness.finish()

    kinds = [event.kind async for event in run.events()]
    assert kinds.index("permission.ask") < kinds.index("approval") < kinds.index("tool.result")
    assert await handled(harness, run) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("lost", [False, True])
async def test_two_asks_of_one_batch_are_answered_in_either_order(
    start: Start, order: tuple[int, int], lost: bool
) -> None:
    """With `lost`, every step is also handled by a worker that dies before its commit."""
    harness, engine = await start(script=rounds([["look", "look"]]))
    run = await begun(engine)
    await harness.finish()
    asks = sorted(await engine.asks(run.session_id), key=lambda asked: asked.ask.call_id)

    await run.resolve(asks[order[0]].ask.id, "allow_once")
    await harness.finish()
    assert ((await engine.session(run.session_id)).state, await handled(harness, run, "/look")) == (
        "awaiting", 0)  # fmt: skip
    await run.resolve(asks[order[1]].ask.id, "deny")
    while waiting := await harness.pending():
        if lost:
            await harness.decide(waiting[0])
        await harness.step(waiting[0])

    results = [event.payload for event in await told(engine, run, "tool.result")]
    assert [result["call_id"] for result in results] == ["c0-0", "c0-1"]
    assert [result["is_error"] for result in results] == [order[1] == n for n in range(2)]
    assert await handled(harness, run, "/look") == 1
    assert (await run.result()).stop == "end_turn"


async def test_an_ask_of_whom_nobody_follows_waits_and_is_answered_from_elsewhere(
    start: Start,
) -> None:
    harness, engine = await start(script=rounds([["change"]]))
    run = await begun(engine)
    async with aclosing(run.events()) as events:
        await anext(events)
    await harness.finish()
    await engine.close()

    await harness.finish()
    async with await Engine.connect(harness.link.url, colony=harness.keys.name) as elsewhere:
        (asked,) = await elsewhere.asks()
        assert (asked.run_id, await handled(harness, run)) == (run.id, 0)
        again = elsewhere.attach(asked.session_id, asked.run_id)
        await again.resolve(asked.ask.id, "allow_once")
        await harness.finish()

        assert (await again.result()).stop == "end_turn"
    assert await handled(harness, run) == 1


async def test_a_verdict_that_two_workers_take_up_makes_the_call_once(start: Start) -> None:
    harness, engine = await start(script=rounds([["change"]]))
    run = await begun(engine)
    await harness.finish()
    (asked,) = await engine.asks(run.session_id)
    verdicts = [run.resolve(asked.ask.id, "allow_once") for _ in range(2)]
    answers = await asyncio.gather(*verdicts, return_exceptions=True)
    assert sum(isinstance(answer, AskNotPending) for answer in answers) == 1

    (released,) = await harness.pending()
    steps = [await harness.decide(released) for _ in range(2)]
    outcomes = [(await harness.commit(step))[0] for step in steps]
    await harness.finish()

    assert [outcome.token for outcome in outcomes] == ["committed", "stale"]
    assert await handled(harness, run) == 1
    assert len(await told(engine, run, "tool.result")) == 1


async def test_what_was_always_allowed_is_not_asked_about_behind_a_restart(
    start: Start, redis_url: str, tmp_path: Path
) -> None:
    same = calls("change")
    same["tool_calls"][0]["arguments"] = {"path": "x"}
    harness, engine = await start(script=[same, says("Done.")], permissions={})
    run = await begun(engine)
    await harness.finish()
    (asked,) = await engine.asks(run.session_id)
    decision = await run.resolve(asked.ask.id, "allow_always")
    assert decision.learned
    await harness.finish()
    await harness.workshop.close()
    await engine.close()

    spec = agent_tree(tmp_path / "again", script=[same, says("Done.")], permissions={})
    async with (
        Harness(redis_url, spec, root=ROOT) as restarted,
        await Engine.connect(redis_url, colony=restarted.keys.name) as other,
    ):
        later = await other.run(run.session_id, "Again.")
        await restarted.finish()

        assert (await later.result()).stop == "end_turn"
        assert await handled(restarted, later) == 1
        assert await told(other, later, "permission.ask") == []
