"""Followers of an agent at work: what each is told, in which order, however fast it listens."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from colony.access import run_follower
from colony.access.run_follower import Frame
from colony.agent.events import CHUNK_BYTES, Event
from colony.engine import Engine, Run
from colony.errors import FollowerLagging
from colony.testing.harness import Harness, at_random
from colony.testing.model_server import ModelServer
from tests.colonies.agent_colony import AGENT, Beside, engine_beside, rounds, says

Start = Callable[..., Awaitable[Beside]]
SOON_S = 30.0


@pytest.fixture
async def start(redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an agent with these values for its template, and an engine beside it."""
    async with AsyncExitStack() as stack:

        async def start(**handed: Any) -> Beside:
            return await stack.enter_async_context(engine_beside(redis_url, tmp_path, **handed))

        yield start


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> int:
    """Little waits for a follower before it counts as too slow; how much."""
    monkeypatch.setattr(run_follower, "BUFFER", 8)
    monkeypatch.setattr(run_follower, "GRACE_S", 0.0)
    return 8


async def begun(engine: Engine) -> Run:
    return await engine.run((await engine.create_session("assistant")).id, "Go.")


async def follow(engine: Engine, run: Run, heard: asyncio.Event) -> list[Event]:
    """All that a follower is told of a run; `heard` is set once it has caught up."""
    told: list[Event] = []
    async with aclosing(engine.follow(run.session_id, run_id=run.id)) as frames:
        async for frame in frames:
            if frame.phase == "mark":
                heard.set()
            elif frame.event is not None:
                told.append(frame.event)
                if frame.event.kind == "result":
                    break
    return told


async def told_live(engine: Engine, run: Run, play: Callable[[], Awaitable[object]]) -> list[Event]:
    """What a follower is told of a run that is played once it listens."""
    heard = asyncio.Event()
    following = asyncio.create_task(follow(engine, run, heard))
    await asyncio.wait_for(heard.wait(), SOON_S)
    await play()
    return await asyncio.wait_for(following, SOON_S)


async def kept(engine: Engine, session_id: str, cursor: str | None = None) -> list[Frame]:
    """The frames of the events in the log of a session behind a cursor."""
    frames = engine.follow(session_id, cursor=cursor, follow=False)
    return [frame async for frame in frames if frame.event is not None]


async def take_all(following: AsyncIterator[Frame], frames: list[Frame]) -> None:
    async for frame in following:
        frames.append(frame)


async def log_of(engine: Engine, run: Run) -> list[Event]:
    return [f.event for f in await kept(engine, run.session_id) if f.event is not None]


async def until(harness: Harness, cell: str) -> None:
    """Step until something of the run is on its way to a cell of the agent."""
    while (await harness.pending())[0].source != harness.keys.cell(f"{AGENT}/{cell}"):
        await harness.step((await harness.pending())[0])


@pytest.mark.parametrize("seed", range(3))
async def test_fifty_results_that_come_at_once_are_told_in_the_order_of_their_numbers(
    start: Start, seed: int
) -> None:
    harness, engine = await start(script=rounds([["look"] * 50]), max_parallel_tools=50)
    run = await begun(engine)

    events = await told_live(engine, run, lambda: harness.finish(at_random(seed)))

    durable = [event.seq for event in events if event.durable]
    assert durable == [*range(1, len(durable) + 1)]
    available = [e.payload["call_id"] for e in events if e.kind == "tool.result.available"]
    results = [e.payload["call_id"] for e in events if e.kind == "tool.result"]
    assert results == [f"c0-{n}" for n in range(50)]
    assert sorted(map(str, available)) == sorted(map(str, results))
    # They came in another order than they were called in, and were told as they came.
    assert available != results


async def test_all_who_follow_are_told_the_same_as_the_log_and_what_is_live(start: Start) -> None:
    harness, engine = await start(script=rounds([["look", "look"], ["change"]]), stream=True)
    run = await begun(engine)
    heard = [asyncio.Event() for _ in range(3)]
    others = [asyncio.create_task(follow(engine, run, each)) for each in heard[1:]]
    await asyncio.wait_for(asyncio.gather(*(each.wait() for each in heard[1:])), SOON_S)

    first = await told_live(engine, run, harness.finish)

    assert await asyncio.gather(*others) == [first, first]
    log = await log_of(engine, run)
    assert [(e.seq, e.id, e.kind) for e in first if e.durable] == [
        (e.seq, e.id, e.kind) for e in log
    ]
    assert {e.kind for e in first if not e.durable} == {"tool.result.available", "message.delta"}
    assert "tool.result.available" not in {event.kind for event in log}


async def test_a_follower_that_is_slow_misses_nothing_that_is_kept(
    start: Start, impatient: int
) -> None:
    harness, engine = await start(script=rounds([["look"]] * 8))
    run = await begun(engine)
    told: list[Event] = []
    async with aclosing(run.events()) as events, asyncio.timeout(SOON_S):
        told.append(await anext(events))
        while await harness.pending():
            # It takes one event while many more happen.
            for _ in range(3 * impatient):
                if waiting := await harness.pending():
                    await harness.step(waiting[0])
            told.append(await anext(events))

        told += [event async for event in events]

    assert [event for event in told if event.durable] == await log_of(engine, run)


async def test_a_follower_that_reads_nothing_is_dropped_and_goes_on_from_its_cursor(
    start: Start, impatient: int
) -> None:
    harness, engine = await start(script=rounds([["look"]] * 4))
    run = await begun(engine)
    frames: list[Frame] = []

    async with aclosing(engine.follow(run.session_id)) as following:
        while (frame := await anext(following)).phase != "mark":
            frames.append(frame)
        await harness.finish()
        with pytest.raises(FollowerLagging) as lagging:
            await take_all(following, frames)

    durable = [frame for frame in frames if frame.cursor]
    assert lagging.value.facts["cursor"] == durable[-1].cursor
    whole = await kept(engine, run.session_id)
    assert len(durable) < len(whole)
    rest = await kept(engine, run.session_id, durable[-1].cursor)
    assert [f.event for f in durable + rest] == [f.event for f in whole]
    assert (await run.result()).stop == "end_turn"


async def test_an_event_that_was_not_marked_as_seen_is_told_again(start: Start) -> None:
    harness, engine = await start(script=rounds([["look"]]))
    run = await begun(engine)
    await harness.finish()
    whole = await kept(engine, run.session_id)

    for seen in range(1, len(whole)):
        # It was killed over the next one, whose cursor it has not kept.
        again = await kept(engine, run.session_id, whole[seen - 1].cursor)
        assert again[0].event == whole[seen].event


async def test_a_run_is_whole_in_the_log_though_everybody_went_away(start: Start) -> None:
    harness, engine = await start(script=rounds([["look"]]), stream=True)
    run = await begun(engine)
    listening = asyncio.create_task(follow(engine, run, asyncio.Event()))
    await until(harness, "collector")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await engine.close()

    await harness.finish()

    async with await Engine.connect(harness.link.url, colony=harness.keys.name) as another:
        events = await log_of(another, run)
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert [event.kind for event in events][-4:] == [
        "turn.start", "message.delta", "turn.end", "result"
    ]  # fmt: skip


@pytest.mark.parametrize("cell", ["model", "permit", "collector"])
async def test_who_still_listens_to_a_cancelled_run_is_told_its_end(
    start: Start, cell: str
) -> None:
    harness, engine = await start(script=rounds([["look", "change"]]))
    run = await begun(engine)

    async def cut() -> None:
        await until(harness, cell)
        await run.cancel()
        await harness.finish()

    events = await told_live(engine, run, cut)

    assert (events[-1].kind, events[-1].payload["stop"]) == ("result", "cancelled")
    assert [event.seq for event in events if event.durable][-1] == events[-1].seq


async def test_a_cancelled_run_ends_though_its_follower_never_reads_again(
    start: Start, impatient: int
) -> None:
    harness, engine = await start(script=rounds([["look"]] * 3))
    run = await begun(engine)
    async with aclosing(run.events()) as events, asyncio.timeout(SOON_S):
        await anext(events)
        await until(harness, "collector")

        await run.cancel()
        assert (await engine.session(run.session_id)).state == "cancelled"
        await harness.finish()

    assert [event.kind for event in await log_of(engine, run)].count("result") == 1


# What is kept of a text.


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_text_is_kept_in_pieces_and_told_once(start: Start, stream: bool) -> None:
    text = "café " * 300_000
    harness, engine = await start(script=[says(text)], stream=stream)
    run = await begun(engine)

    events = await told_live(engine, run, harness.finish)

    pieces = [e.payload for e in await log_of(engine, run) if e.kind == "message.delta"]
    assert len(pieces) == 2
    assert all(len(str(piece["text"]).encode()) <= CHUNK_BYTES for piece in pieces)
    assert "".join(str(piece["text"]) for piece in pieces) == text
    heard = [e.payload for e in events if e.kind == "message.delta" and e.payload["text"]]
    assert "".join(str(piece["text"]) for piece in heard) == text


async def test_thoughts_and_text_are_told_as_they_come_and_the_text_is_kept_as_one(
    start: Start,
) -> None:
    deltas = [
        {"reasoning_content": "hm"},
        {"content": "One"},
        {"reasoning_content": ", hm"},
        {"content": " and two."},
    ]
    chunks: list[Any] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    with ModelServer([{"chunks": chunks, "pause_s": 0.1}]) as server:
        harness, engine = await start(
            provider="openai", model="m", base_url=server.base_url, stream=True
        )
        run = await begun(engine)
        events = await told_live(engine, run, harness.finish)

    texts = [
        (e.kind, e.durable, e.payload["text"], e.payload["offset"])
        for e in events
        if e.kind in ("message.delta", "reasoning.delta") and e.payload["text"]
    ]
    assert texts == [
        ("reasoning.delta", False, "hm", 0), ("message.delta", False, "One", 0),
        ("reasoning.delta", False, ", hm", 2), ("message.delta", False, " and two.", 3),
    ]  # fmt: skip
    log = await log_of(engine, run)
    assert [e.payload["text"] for e in log if e.kind == "message.delta"] == ["One and two."]
    assert "reasoning.delta" not in {event.kind for event in log}
    assert "hm" not in json.dumps([event.payload for event in log])
