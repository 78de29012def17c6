"""What an application holds: sessions, runs, and their events from whatever place."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from colony.access.run_follower import Frame, RunFollower
from colony.agent.events import Event, live_message
from colony.engine import Engine
from colony.envelope import digest
from colony.errors import (
    AgentNotFound,
    AskNotPending,
    CursorExpired,
    CursorMalformed,
    InvalidArgument,
    RetryIneligible,
    SessionAwaiting,
    SessionBusy,
    SessionNotFound,
    StaleRunControl,
)
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


async def all_frames(engine: Engine, session_id: str, **given: Any) -> list[Frame]:
    return [frame async for frame in engine.follow(session_id, follow=False, **given)]


async def told(run: Any) -> list[Event]:
    async with asyncio.timeout(SOON_S):
        return [event async for event in run.events()]


async def test_a_run_tells_everything_from_its_first_event_to_its_result(start: Start) -> None:
    harness, engine = await start(script=rounds([["look", "look"]]))
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    listening = asyncio.create_task(told(run))

    await harness.finish()

    events = await listening
    assert (events[0].kind, events[-1].kind) == ("session.init", "result")
    durable = [event for event in events if event.durable]
    assert [event.seq for event in durable] == [*range(1, len(durable) + 1)]
    assert (await run.result()).stop == "end_turn"
    assert [event.kind for event in events].count("result") == 1


async def test_whoever_comes_later_is_told_the_same(start: Start) -> None:
    harness, engine = await start(script=rounds([["look"]]))
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    await harness.finish()

    events = await told(engine.attach(session.id, run.id))

    frames = await all_frames(engine, session.id)
    assert frames[-1].phase == "mark"
    assert [frame.event for frame in frames[:-1]] == events


async def test_a_stream_that_is_cut_anywhere_goes_on_there(start: Start) -> None:
    harness, engine = await start(script=rounds([["look"], ["look"]]))
    session = await engine.create_session("assistant")
    await engine.run(session.id, "Go.")
    await harness.finish()
    whole = (await all_frames(engine, session.id))[:-1]

    for cut in range(1, len(whole)):
        rest = await all_frames(engine, session.id, cursor=whole[cut - 1].cursor)
        assert [frame.event for frame in rest[:-1]] == [frame.event for frame in whole[cut:]]


async def test_a_cursor_is_of_one_session_and_of_what_is_kept(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    one, other = [await engine.create_session("assistant") for _ in range(2)]
    for session in (one, other):
        await engine.run(session.id, "Go.")
        await harness.finish()
    cursor = (await all_frames(engine, one.id))[0].cursor

    for wrong in (cursor, "nonsense", ""):
        with pytest.raises(CursorMalformed):
            await all_frames(engine, other.id, cursor=wrong)
    await harness.link.command("XTRIM", harness.keys.session_events(one.id), "MAXLEN", 1)
    with pytest.raises(CursorExpired):
        await all_frames(engine, one.id, cursor=cursor)


async def test_a_cursor_beyond_the_log_is_told_of_a_gap(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")
    await engine.run(session.id, "Go.")
    await harness.finish()
    whole = await all_frames(engine, session.id)
    tag = (whole[0].cursor or "").partition("@")[2]

    frames = await all_frames(engine, session.id, cursor=f"999999999999999-0@{tag}")

    assert [frame.phase for frame in frames] == ["gap", *["replay"] * (len(whole) - 1), "mark"]


async def test_a_session_takes_one_run_at_a_time(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.", idempotency_key="key")

    assert (await engine.run(session.id, "Go.", idempotency_key="key")).id == run.id
    with pytest.raises(SessionBusy):
        await engine.run(session.id, "And this.")
    await harness.finish()
    with pytest.raises(RetryIneligible):
        await engine.retry(session.id)


async def test_a_session_of_somebody_else_is_as_if_it_were_not_there(start: Start) -> None:
    _, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant", owner="me")

    assert [found.id for found in (await engine.sessions(owner="me")).sessions] == [session.id]
    assert (await engine.sessions(owner="you")).sessions == []
    for asking in (
        engine.session(session.id, owner="you"),
        engine.session("nothing", owner="you"),
        engine.run(session.id, "Go.", owner="you"),
        engine.delete(session.id, owner="you"),
    ):
        with pytest.raises(SessionNotFound):
            await asking


async def test_what_cannot_be_meant_is_refused(start: Start) -> None:
    _, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")

    with pytest.raises(AgentNotFound):
        await engine.create_session("nobody")
    for asking in (
        engine.create_session("assistant", limits={"max_turns": -1}),
        engine.create_session("assistant", rules={"allow": ["("]}),
        engine.run(session.id, "  "),
        engine.resolve(session.id, "run", "ask", "yes"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            await asking


async def test_half_a_character_is_refused_wherever_something_is_said(start: Start) -> None:
    harness, engine = await start(script=rounds([["change"]]), permissions={"ask": ["change"]})
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    await harness.finish()
    (ask,) = await engine.asks(session.id)
    half = "\ud800"

    for asking in (
        engine.create_session("assistant", model=half),
        engine.create_session("assistant", rules={"allow": [half]}),
        engine.run(session.id, half),
        engine.steer(session.id, half),
        run.resolve(ask.ask.id, "deny", half),
        run.resolve(ask.ask.id, "allow_once", args={"n": half}),
        run.resolve(ask.ask.id, "allow_once", args={"n": float("nan")}),
    ):
        with pytest.raises(InvalidArgument):
            await asking
    assert await engine.asks(session.id) == [ask]


async def test_what_is_no_id_names_nothing(start: Start) -> None:
    _, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")

    for named in (f"{session.id}:events", f"{session.id}:history", "", "*", f"{session.id}\n"):
        with pytest.raises(SessionNotFound):
            await engine.session(named)
    for named in (f"{run.id}:log", f"{run.id}:run", "", "*"):
        with pytest.raises(StaleRunControl):
            await engine.cancel(session.id, named)
    assert (await engine.session(session.id)).live


async def test_an_ask_is_answered_once_and_by_the_run_that_asks(start: Start) -> None:
    harness, engine = await start(script=rounds([["change"]]), permissions={"ask": ["change"]})
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    await harness.finish()
    (ask,) = await engine.asks(session.id)

    with pytest.raises(SessionAwaiting):
        await engine.run(session.id, "And this.")
    with pytest.raises(StaleRunControl):
        await engine.resolve(session.id, "another", ask.ask.id, "allow_once")
    first = await run.resolve(ask.ask.id, "allow_once", idempotency_key="key")
    assert await run.resolve(ask.ask.id, "deny", idempotency_key="key") == first
    with pytest.raises(AskNotPending):
        await run.resolve(ask.ask.id, "deny")

    await harness.finish()
    assert (await run.result()).state == "completed"
    assert await engine.asks() == []


async def test_of_twenty_answers_one_counts(start: Start) -> None:
    harness, engine = await start(script=rounds([["change"]]), permissions={"ask": ["change"]})
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    await harness.finish()
    (ask,) = await engine.asks(session.id)

    verdicts = [run.resolve(ask.ask.id, "deny" if n % 2 else "allow_once") for n in range(20)]
    answers = await asyncio.gather(*verdicts, return_exceptions=True)

    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert {type(a) for a in answers if isinstance(a, BaseException)} == {AskNotPending}


async def test_closing_a_stream_ends_nothing(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    async with aclosing(run.events()) as events:
        assert (await anext(events)).kind == "session.init"

    await harness.finish()

    assert (await run.result()).state == "completed"


async def test_a_stream_that_is_to_take_its_run_along_does(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.", on_disconnect="cancel")
    async with aclosing(run.events()) as events:
        await anext(events)

    await harness.finish()

    assert (await run.result()).state == "cancelled"
    assert not await run.cancel()


async def test_a_session_that_is_deleted_takes_its_run_along(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")
    await engine.run(session.id, "Go.")

    await engine.delete(session.id)

    await harness.finish()
    with pytest.raises(SessionNotFound):
        await engine.session(session.id)
    left = await harness.link.command("KEYS", f"*{session.id}*")
    assert left == []


async def test_a_fork_begins_with_what_was_said(start: Start) -> None:
    harness, engine = await start(script=rounds([["look"]]))
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    await harness.finish()

    fork = await engine.fork(session.id, run_id=run.id, turn=0)

    rows = await engine.transcript(fork.id)
    assert [row.kind for row in rows] == ["user", "assistant", "results"]
    assert fork.fork_of == session.id
    with pytest.raises(StaleRunControl):
        await engine.fork(session.id, run_id=run.id, turn=9)


async def test_every_session_is_on_some_page_though_many_changed_at_once(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    made = {(await engine.create_session("assistant", owner="me")).id for _ in range(5)}
    for owner in ("", digest("me")):
        key = harness.keys.agent_sessions(owner)
        for name in await harness.link.command("ZRANGE", key, 0, -1):
            await harness.link.command("ZADD", key, 7, name)

    for owner in (None, "me"):
        found: list[str] = []
        cursor = ""
        while not found or cursor:
            page = await engine.sessions(owner=owner, cursor=cursor, limit=2)
            found += [session.id for session in page.sessions]
            cursor = page.cursor
        assert (len(found), {*found}) == (5, made)
    with pytest.raises(CursorMalformed):
        await engine.sessions(cursor="nonsense")


async def test_a_follower_that_was_cut_off_is_told_no_text_twice(start: Start) -> None:
    harness, engine = await start(script=[says("one")])
    session = await engine.create_session("assistant")
    run = await engine.run(session.id, "Go.")
    follower = RunFollower(session.id, run.id)
    live = live_message(run.id, "message.delta", 0, {"text": "on", "offset": 0})
    async with aclosing(engine.feed.go_on(follower)) as frames, asyncio.timeout(SOON_S):
        while (await anext(frames)).phase != "mark":
            pass
        await harness.link.command("PUBLISH", harness.keys.session_live(session.id), live)
        heard = (await anext(frames)).event
    await harness.finish()

    rest = [frame.event async for frame in engine.feed.go_on(follower, follow=False)]

    texts = [e.payload for e in (heard, *rest) if e is not None and e.kind == "message.delta"]
    assert [(text["text"], text["offset"]) for text in texts] == [("on", 0), ("e", 2)]
