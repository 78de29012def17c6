"""The feed: what a follower is told, and what one is told that was too slow."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony.access import Access
from colony.access.feed import BUFFER, Feed, Gap
from colony.body import Body, Entry
from colony.envelope import Head
from colony.records import HopRecord, write_record
from colony.routing import Leg


@pytest.fixture
async def access(redis_url: str) -> AsyncIterator[Access]:
    async with Access(redis_url, "fed") as access:
        yield access


async def trace_with(access: Access, hops: int, *, first: int = 0, trace_id: str = "") -> str:
    """A trace whose log has so many hops, written as a router does."""
    body = Body.of(Entry.say("user", "x"))
    trace_id = trace_id or (await access.traces.birth("/x", body, ttl=9)).trace_id
    for n in range(first, first + hops):
        head = Head(id=f"{n}", trace_id=trace_id, target="/x", ttl=9)
        record = write_record(Leg(head, None), None)
        await access.link.command("XADD", access.keys.log(trace_id), "*", "record", record)
    return trace_id


async def test_a_follower_that_is_too_slow_is_told_what_it_missed(access: Access) -> None:
    hops = access.feed.follow()
    trace_id = await trace_with(access, 1)
    async with asyncio.timeout(10):
        assert isinstance(await anext(hops), HopRecord)
        quick = access.feed.follow()
        seen = asyncio.create_task(_until(quick, str(BUFFER + 10)))
        await trace_with(access, BUFFER + 10, first=1, trace_id=trace_id)
        await seen
        told = [await anext(hops) for _ in range(BUFFER + 1)]

        assert all(isinstance(item, HopRecord) for item in told[:-1])
        assert told[-1] == Gap(10)
        await trace_with(access, 1, first=9999, trace_id=trace_id)
        after = await anext(hops)
        assert isinstance(after, HopRecord)
        assert after.head.id == "9999"


async def test_a_closed_feed_ends_its_followers(access: Access) -> None:
    following = asyncio.create_task(_until(access.feed.follow(), "never"))
    async with asyncio.timeout(10):
        await asyncio.sleep(0)
        access.feed.stop()
        await following


async def test_a_trace_is_followed_to_its_end_and_no_further(access: Access) -> None:
    trace_id = await trace_with(access, 3)
    following = asyncio.create_task(_all(access.feed, trace_id))
    await access.traces.end(trace_id, "cancelled", "cancelled")
    await access.link.command("HSET", access.keys.trace(trace_id), "live", 0)

    async with asyncio.timeout(10):
        assert await following == ["0", "1", "2"]


async def _until(hops: AsyncIterator[HopRecord | Gap], last: str) -> None:
    async for item in hops:
        if isinstance(item, HopRecord) and item.head.id == last:
            return


async def _all(feed: Feed, trace_id: str) -> list[str]:
    return [record.head.id async for record in feed.follow_trace(trace_id)]
