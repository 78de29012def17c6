"""What cells tell: heard by whoever follows now, once, and in the way of nobody."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from colony.access import Access
from colony.access.live_followers import BUFFER, LiveFollower
from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.link import Link
from colony.live import LiveEvent
from colony.records import HopRecord
from colony.testing.claims import eventually
from colony.topology.model import CellSettings, CellSpec

PATIENCE_S = 20
HELLO = Body.of(Entry.say("user", "x"))


@pytest.fixture
async def access(redis_url: str) -> AsyncIterator[Access]:
    async with Access(redis_url, "live") as access:
        yield access


def host(link: Link, trace_id: str) -> LiveHost:
    return LiveHost(
        link=link,
        keys=Keys("live"),
        spec=CellSpec(path="/llm", cell=CellSettings(type="llm"), params={}),
        directory=None,
        tools=(),
        envelope=Envelope(id="m", trace_id=trace_id, target="/llm", ttl=9, body=HELLO),
        server=None,
    )


async def listeners(access: Access) -> int:
    _, count = await access.link.command("PUBSUB", "NUMSUB", access.keys.live())
    return int(count)


async def birth(access: Access) -> str:
    return (await access.traces.birth("/x", HELLO, ttl=9)).trace_id


async def told(access: Access, trace_id: str) -> AsyncIterator[LiveEvent]:
    async for item in access.feed.watch_trace(trace_id):
        if isinstance(item, LiveEvent):
            yield item


def delta(offset: int, text: str, **facts: Any) -> LiveEvent:
    given = {"message_id": "m-1", "offset": offset, "text": text, **facts}
    return LiveEvent("t-1", "/llm", given.pop("kind", "text"), given)


async def test_what_a_cell_tells_comes_to_those_who_follow_its_trace(access: Access) -> None:
    mine, other = await birth(access), await birth(access)
    hearing = asyncio.ensure_future(anext(told(access, mine)))
    await eventually(lambda: _is(access, 1))

    await host(access.link, other).tell("text", text="theirs", offset=0, message_id="m")
    await host(access.link, mine).tell("text", text="grün", offset=0, message_id="m")

    event = await asyncio.wait_for(hearing, PATIENCE_S)
    assert event.to_json() == {
        "trace_id": mine,
        "cell": "/llm",
        "kind": "text",
        "message_id": "m",
        "offset": 0,
        "text": "grün",
    }


async def test_a_process_listens_once_and_only_while_somebody_follows(access: Access) -> None:
    traces = [await birth(access) for _ in range(3)]
    following = [asyncio.ensure_future(anext(told(access, trace))) for trace in traces]
    await eventually(lambda: _is(access, 1))
    for trace in traces:
        await host(access.link, trace).tell("text", text=trace, offset=0, message_id="m")
    events = await asyncio.wait_for(asyncio.gather(*following), PATIENCE_S)

    assert [event.facts["text"] for event in events] == traces
    await access.feed.close()
    await eventually(lambda: _is(access, 0))


async def test_hops_and_what_is_told_come_in_one_stream_to_the_end_of_the_trace(
    access: Access,
) -> None:
    trace_id = await birth(access)
    seen: list[HopRecord | LiveEvent] = []

    async def follow() -> None:
        async for item in access.feed.watch_trace(trace_id):
            seen.append(item)

    following = asyncio.create_task(follow())
    await eventually(lambda: _is(access, 1))
    await host(access.link, trace_id).tell("text", text="a", offset=0, message_id="m")
    await eventually(lambda: len(seen) == 1)
    await access.traces.end(trace_id, "cancelled", "cancelled")
    await access.link.command("HSET", access.keys.trace(trace_id), "live", 0)

    await asyncio.wait_for(following, PATIENCE_S)
    assert [type(item) for item in seen] == [LiveEvent]


async def test_a_connection_that_is_lost_is_opened_again(access: Access) -> None:
    trace_id = await birth(access)
    hearing = asyncio.ensure_future(anext(told(access, trace_id)))
    await eventually(lambda: _is(access, 1))
    await access.link.command("CLIENT", "KILL", "TYPE", "pubsub")
    await eventually(lambda: _is(access, 1))

    async def heard() -> bool:
        await host(access.link, trace_id).tell("text", text="a", offset=0, message_id="m")
        return hearing.done()

    await eventually(heard)
    assert hearing.result().facts["text"] == "a"


async def test_a_server_that_is_away_costs_the_event_and_nothing_else() -> None:
    link = Link("redis://127.0.0.1:1/0")
    try:
        await host(link, "t-1").tell("text", text="a")
    finally:
        await link.close()


@pytest.mark.parametrize(
    ("events", "heard"),
    [
        ([delta(0, "ab"), delta(2, "cd")], [(0, "ab"), (2, "cd")]),
        ([delta(0, "ab"), delta(0, "ab"), delta(2, "cd")], [(0, "ab"), (2, "cd")]),
        ([delta(0, "ab"), delta(0, "abcd")], [(0, "ab"), (2, "cd")]),
        ([delta(0, "ab"), delta(5, "f")], [(0, "ab"), (5, "f")]),
        ([delta(0, "ab"), delta(0, "xy", message_id="m-2")], [(0, "ab"), (0, "xy")]),
        ([delta(0, "ab"), delta(0, "hm", kind="reasoning")], [(0, "ab"), (0, "hm")]),
    ],
)
def test_no_text_is_told_twice(events: Sequence[LiveEvent], heard: list[tuple[int, str]]) -> None:
    follower = LiveFollower("t-1")

    for event in events:
        follower.push(event)

    assert [(e.facts["offset"], e.facts["text"]) for e in follower.buffer] == heard


def test_a_follower_that_is_too_slow_loses_what_does_not_fit() -> None:
    follower = LiveFollower("t-1")

    for n in range(BUFFER + 9):
        follower.push(delta(n, "x"))

    assert len(follower.buffer) == BUFFER


@pytest.mark.parametrize("message", [b"", b"{", b"[]", b"{}", b"7", b'{"trace_id": "t"}'])
def test_what_is_no_event_is_left_out(message: bytes) -> None:
    assert LiveEvent.parse(message) is None


async def _is(access: Access, count: int) -> bool:
    return await listeners(access) == count
