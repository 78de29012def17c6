"""A session that a person has folded: only where no run drives it, and only where that helps."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from colony.engine import Engine, Run
from colony.errors import SessionAwaiting, SessionBusy
from colony.testing.harness import Harness
from tests.colonies.agent_colony import Beside, engine_beside, rounds, says

Start = Callable[..., Awaitable[Beside]]
SOON_S = 20.0


@pytest.fixture
async def start(redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an agent with these values for its template, and an engine beside it."""
    async with AsyncExitStack() as stack:

        async def start(**handed: Any) -> Beside:
            return await stack.enter_async_context(engine_beside(redis_url, tmp_path, **handed))

        yield start


async def begun(engine: Engine) -> Run:
    return await engine.run((await engine.create_session("assistant")).id, "Go.")


async def compacted(harness: Harness, engine: Engine, session_id: str) -> bool:
    """Whether a session that is folded became smaller."""
    folding = asyncio.create_task(engine.compact(session_id))
    async with asyncio.timeout(SOON_S):
        while not folding.done():
            await harness.finish()
            await asyncio.wait([folding], timeout=0.05)
    return await folding


async def kinds(engine: Engine, session_id: str) -> list[str]:
    frames = engine.follow(session_id, follow=False)
    return [frame.event.kind async for frame in frames if frame.event is not None]


async def test_a_session_that_a_run_drives_is_not_folded(start: Start) -> None:
    harness, engine = await start(script=rounds([["look"]] * 3))
    run = await begun(engine)
    before = await engine.session(run.session_id)

    with pytest.raises(SessionBusy):
        await engine.compact(run.session_id)

    assert await engine.session(run.session_id) == before
    await harness.finish()
    assert (await run.result()).stop == "end_turn"


async def test_a_session_that_waits_for_an_answer_is_not_folded(start: Start) -> None:
    harness, engine = await start(
        script=rounds([["look"], ["change"]]), permissions={"allow": ["look"]}
    )
    run = await begun(engine)
    await harness.finish()
    before, asks = await engine.session(run.session_id), await engine.asks(run.session_id)

    with pytest.raises(SessionAwaiting):
        await engine.compact(run.session_id)

    assert await engine.session(run.session_id) == before
    assert await engine.asks(run.session_id) == asks
    await run.resolve(asks[0].ask.id, "allow_once")
    await harness.finish()
    assert (await run.result()).stop == "end_turn"


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed"])
async def test_a_session_whose_run_has_ended_is_folded_and_goes_on(start: Start, end: str) -> None:
    last = {"error": "timeout"} if end == "failed" else says("Done.")
    harness, engine = await start(script=[*rounds([["look"]] * 6)[:-1], last])
    run = await begun(engine)
    if end == "cancelled":
        while len(await engine.transcript(run.session_id)) < 12:
            await harness.step((await harness.pending())[0])
        await run.cancel()
    await harness.finish()
    before = await engine.session(run.session_id)
    assert before.state == end
    rows = await engine.transcript(run.session_id)

    assert await compacted(harness, engine, run.session_id)

    told = await kinds(engine, run.session_id)
    assert told[-3:] == ["compaction", "compaction.archive", "result"]
    # The view is another one, and the record stays.
    assert (await engine.transcript(run.session_id))[: len(rows)] == rows
    after = await engine.session(run.session_id)
    assert after.usage == before.usage
    again = await engine.run(run.session_id, "And now?")
    await harness.finish()
    assert (await again.result()).state in ("completed", "failed")


async def test_a_session_with_nothing_to_gain_is_left_as_it_is(start: Start) -> None:
    harness, engine = await start(script=[says("Yes.")])
    run = await begun(engine)
    await harness.finish()
    rows = await engine.transcript(run.session_id)

    assert not await compacted(harness, engine, run.session_id)

    assert "compaction" not in await kinds(engine, run.session_id)
    assert await engine.transcript(run.session_id) == rows
