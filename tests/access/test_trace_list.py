"""Traces by state: what is open, what fell quiet and waits for a keeper, what has ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from colony.access.trace_list import PAGE, TraceList
from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.envelope import Headers
from colony.inbox import Inbox, make_groups
from colony.keeping.keeper import Keeper
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.publication import Publication
from colony.streams import Delivery, Step, Streams
from colony.testing.harness import Harness
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, ModifierSpec, TopologySpec
from colony.traces import Traces

KEYS = Keys("listed")
HELLO = Body.of(Entry.say("user", "hello"))
MANY = 3 * PAGE


class Counting(Link):
    """A link that counts what is asked."""

    asked = 0

    async def command(self, *parts: Any, server: str | None = None) -> Any:
        self.asked += 1
        return await super().command(*parts, server=server)


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Counting]:
    link = Counting(redis_url)
    await make_groups(link, [KEYS.router(), KEYS.quiet()])
    yield link
    await link.close()


@pytest.fixture
def listed(link: Counting) -> TraceList:
    return TraceList(link, KEYS)


async def born(link: Link, count: int = 1) -> list[str]:
    """So many traces with an envelope under way, the newest first."""
    traces = Traces(link, KEYS)
    births = await asyncio.gather(*(traces.birth("/a", HELLO, ttl=9) for _ in range(count)))
    newest = await traces.ids("open", limit=count)
    assert {*newest} == {birth.trace_id for birth in births}
    return newest


async def lose(link: Link) -> list[str]:
    """Everything under way is lost; returns the traces, those that fell quiet last first."""
    streams = Streams(link, KEYS, Blobs(link, KEYS))
    lost: list[str] = []
    while found := await Inbox(link, "r").read([KEYS.router()], count=64, block_ms=None):
        steps = [Step(delivery) for delivery in found if isinstance(delivery, Delivery)]
        await streams.commit(steps)
        lost += [step.delivery.head.trace_id for step in steps]
    return lost[::-1]


async def ids(listed: TraceList, state: Any, limit: int = 10) -> list[str]:
    return [trace.id for trace in await listed.newest(state, limit=limit)]


async def test_each_trace_is_listed_in_the_state_it_is_in(
    link: Counting, listed: TraceList
) -> None:
    lost = await born(link, 3)
    await lose(link)
    ended, *quiet = lost
    await Traces(link, KEYS).end(ended, "cancelled", "cancelled")
    moving = await born(link, 2)

    assert await ids(listed, "open") == moving
    assert sorted(await ids(listed, "quiet")) == sorted(quiet)
    assert await ids(listed, "ended") == [ended]


async def test_a_quiet_trace_is_listed_until_it_was_attended_to(
    link: Counting, listed: TraceList
) -> None:
    publication = Publication(link, KEYS)
    await publication.publish(TopologySpec())
    await publication.refresh()
    keeper = Keeper(Streams(link, KEYS, Blobs(link, KEYS)), publication)
    [trace_id] = await born(link)
    await lose(link)
    await link.command("XREADGROUP", "GROUP", GROUP, "k", "STREAMS", KEYS.quiet(), ">")

    assert await ids(listed, "quiet") == [trace_id], "somebody holds it, nobody took it up"
    await keeper.attend(trace_id)

    assert await ids(listed, "quiet") == []
    assert await ids(listed, "ended") == [trace_id]


async def test_a_record_that_somebody_else_wrote_to_hides_no_other(
    link: Link, listed: TraceList
) -> None:
    odd, trace_id = await born(link, 2)
    await link.command("HSET", KEYS.trace(odd), "created_at", "yesterday")

    assert await ids(listed, "open") == [trace_id]


async def test_traces_are_listed_behind_many_of_another_state(
    link: Counting, listed: TraceList
) -> None:
    moving = await born(link, 2)
    kept = await Inbox(link, "r").read([KEYS.router()], count=2, block_ms=None)
    assert len(kept) == 2
    await born(link, MANY)
    quiet = await lose(link)

    assert await ids(listed, "open", 1) == moving[:1]
    assert await ids(listed, "open") == moving
    assert await ids(listed, "quiet", MANY + 1) == quiet
    assert await ids(listed, "quiet", 5) == quiet[:5]


async def test_a_list_costs_what_its_limit_says_however_many_traces_are_open(
    link: Counting, listed: TraceList
) -> None:
    await born(link, 5 * MANY)
    link.asked = 0

    assert len(await listed.newest("open", limit=10)) == 10
    assert link.asked <= 1 + PAGE

    link.asked = 0
    assert await listed.newest("quiet", limit=10) == []
    assert link.asked == 1


async def test_a_trace_that_was_reported_twice_is_listed_once(
    link: Counting, listed: TraceList
) -> None:
    [trace_id] = await born(link)
    await lose(link)
    await link.command("XADD", KEYS.quiet(), "*", "trace", trace_id)
    await link.command("XADD", KEYS.quiet(), "*", "trace", "gone")

    assert await ids(listed, "quiet") == [trace_id]


async def named(link: Link, session: str, count: int = 1) -> list[str]:
    """So many traces of a session, the newest first."""
    context: Headers = {"session_id": session}
    births = [
        await Traces(link, KEYS).birth("/a", HELLO, ttl=9, context=context) for _ in range(count)
    ]
    return [birth.trace_id for birth in births][::-1]


async def test_traces_of_a_session_are_listed_without_the_others(
    link: Counting, listed: TraceList
) -> None:
    traces = Traces(link, KEYS)
    await born(link, 5)
    mine = await named(link, "mine", 4)
    await named(link, "other", 3)
    ended = mine[2:]
    for trace_id in ended:
        await traces.end(trace_id, "cancelled", "cancelled")

    link.asked = 0
    page = await listed.of_session("mine", "open", limit=10)
    assert ([t.id for t in page.traces], page.complete) == (mine[:2], True)
    # The places, twice, and of each trace its session and its record.
    assert link.asked <= 2 + 2 * 2
    assert (await listed.of_session("mine", "quiet", limit=10)).traces == []
    page = await listed.of_session("mine", "ended", limit=10)
    assert ({t.id for t in page.traces}, page.complete) == ({*ended}, True)
    assert len((await listed.of_session("mine", "ended", limit=1)).traces) == 1
    assert (await listed.of_session("nobody", "ended", limit=1)).traces == []


async def test_ended_traces_are_not_all_looked_at_for_those_of_a_session(
    link: Counting, listed: TraceList
) -> None:
    [oldest] = await named(link, "mine")
    others = await born(link, 2 * PAGE)
    for trace_id in (oldest, *others):
        await Traces(link, KEYS).end(trace_id, "cancelled", "cancelled")
    await link.command("ZADD", KEYS.ended_traces(), 1, oldest)

    link.asked = 0
    page = await listed.of_session("mine", "ended", limit=10, scan_budget=PAGE)
    assert (page.traces, page.complete) == ([], False)
    assert link.asked == 1 + PAGE

    page = await listed.of_session("mine", "ended", limit=10, scan_budget=2 * PAGE + 1)
    assert ([t.id for t in page.traces], page.complete) == ([oldest], True)


async def test_a_trace_is_described_by_its_question_and_whom_it_waits_for(
    redis_url: str,
) -> None:
    spec = TopologySpec(
        cells=(CellSpec(path="/a", cell=CellSettings(type="sink")),),
        hives=("/", "/in"),
        edges=(EdgeSpec(source="/in", target="/a", modifier=ModifierSpec(in_session_order=True)),),
    )
    async with Harness(redis_url, spec) as harness:
        context: Headers = {"session_id": "s"}
        asked = [Body.of(Entry.say("user", text)) for text in ("Is " + "it? " * 99, "And?")]
        first, second = [await harness.send("/in", body, context=context) for body in asked]
        listed = TraceList(harness.link, harness.keys)

        for delivery in await harness.pending():
            await harness.step(delivery)
        traces = [await harness.trace(trace_id) for trace_id in (first, second)]
        [told, waiting] = await listed.described(traces, "excerpt")
        [_, hidden] = await listed.described(traces, "none")

    assert (told.waits_for, waiting.waits_for) == (None, first)
    assert told.question is not None
    assert told.question.startswith("Is it? ")
    assert told.question.endswith("…")
    assert (waiting.question, hidden.question) == ("And?", None)
    assert waiting.to_json()["waits_for"] == first
