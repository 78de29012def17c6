"""What waits at cells that no worker hosts does not wait for ever."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import encode_body, encode_head
from colony.dead_letters import DeadLetters
from colony.inbox import Inbox
from colony.keeping.unhosted import Unhosted
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.slots import Slots
from colony.streams import Delivery, Outcome, Outgoing, Step, Streams
from colony.testing.claims import eventually
from colony.topology.model import CellSettings, CellSpec, ColonySettings, EdgeSpec, TopologySpec
from colony.traces import Traces

KEYS = Keys("test")
HELLO = Body.of(Entry.say("user", "hello"))


def tree(*paths: str, after_ms: int = 1, timeout_ms: int = 1) -> TopologySpec:
    settings = ColonySettings(unhosted_after_ms=after_ms, message_timeout_default_ms=timeout_ms)
    cells = tuple(CellSpec(path=path, cell=CellSettings(type="sink")) for path in paths)
    edges = tuple(EdgeSpec(source="/x", target=path) for path in paths)
    return TopologySpec(settings=settings, cells=cells, edges=edges)


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@pytest.fixture
async def unhosted(link: Link) -> Unhosted:
    publication = Publication(link, KEYS)
    await publication.publish(tree("/a"))
    await publication.refresh()
    return Unhosted(Streams(link, KEYS, Blobs(link, KEYS)), publication)


async def sent(unhosted: Unhosted, path: str = "/a", body: Body = HELLO) -> str:
    """A trace with one envelope on its way to a cell; returns its id."""
    birth = await Traces(unhosted.streams.link, KEYS).birth(path, HELLO, ttl=9)
    inbox = Inbox(unhosted.streams.link, "r")
    (delivery,) = await inbox.read([KEYS.router()], count=1, block_ms=None)
    assert isinstance(delivery, Delivery)
    out = Outgoing(KEYS.cell(path), encode_head(delivery.head), encode_body(body))
    await unhosted.streams.commit([Step(delivery, [out])])
    return birth.trace_id


async def passes(link: Link, ms: int) -> None:
    """Wait until the server's clock is so much further."""

    async def now() -> int:
        seconds, micros = await link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    begun = await now()

    async def passed() -> bool:
        return await now() > begun + ms

    await eventually(passed)


async def apply(unhosted: Unhosted, spec: TopologySpec) -> None:
    await unhosted.publication.publish(spec)
    await unhosted.publication.refresh()


async def backlog(link: Link, path: str = "/a") -> int:
    return int(await link.command("XLEN", KEYS.cell(path)))


async def test_what_nobody_hosted_for_long_enough_is_reported_then_dead_lettered(
    link: Link, unhosted: Unhosted, caplog: pytest.LogCaptureFixture
) -> None:
    trace_id = await sent(unhosted)
    await apply(unhosted, tree("/a", timeout_ms=60_000))

    with caplog.at_level(logging.ERROR, "colony.unhosted"):
        assert await unhosted.look() == {}
        await passes(link, 5)
        assert await unhosted.look() == {}
        assert await unhosted.look() == {}

    (line,) = caplog.messages
    assert "cell_unhosted" in line
    assert "cell=/a" in line
    assert "waiting=1" in line
    assert await backlog(link) == 1

    await apply(unhosted, tree("/a"))
    assert await unhosted.look() == {"/a": 1}
    assert await backlog(link) == 0
    (letter,) = await DeadLetters(link, KEYS).list()
    assert (letter.code, letter.trace_id) == ("cell_inactive", trace_id)
    assert (letter.facts["resolved_target"], letter.facts["attempts"]) == ("/a", 0)
    trace = await Traces(link, KEYS).get(trace_id)
    assert (trace.state, trace.live, trace.error_code) == ("quiet", 0, "cell_inactive")


async def test_a_cell_that_has_a_host_is_left_alone(link: Link, unhosted: Unhosted) -> None:
    await sent(unhosted)
    slots = Slots(link, KEYS, "worker")
    await slots.lease({"cells": ["/a"]})

    await unhosted.look()
    await passes(link, 10)
    assert await unhosted.look() == {}
    assert await backlog(link) == 1

    await slots.release()
    await unhosted.look()
    await passes(link, 10)
    assert await unhosted.look() == {"/a": 1}


async def test_a_host_in_between_starts_the_time_anew(link: Link, unhosted: Unhosted) -> None:
    await apply(unhosted, tree("/a", after_ms=1000))
    await sent(unhosted)
    await unhosted.look()
    unhosted._since["/a"] -= 60_000
    slots = Slots(link, KEYS, "worker")
    await slots.lease({"cells": ["/a"]})
    await unhosted.look()
    await slots.release()

    assert await unhosted.look() == {}
    assert await backlog(link) == 1


async def test_what_came_a_moment_ago_has_its_own_time(link: Link, unhosted: Unhosted) -> None:
    await apply(unhosted, tree("/a", after_ms=1000))
    await unhosted.look()
    unhosted._since["/a"] -= 20_000
    await sent(unhosted)

    assert await unhosted.look() == {}
    assert await backlog(link) == 1


async def test_who_did_not_look_for_long_does_not_count_that_time(
    link: Link, unhosted: Unhosted
) -> None:
    await sent(unhosted)
    await unhosted.look()
    await passes(link, 10)
    unhosted._looked -= 60_000

    assert await unhosted.look() == {}


async def test_what_waits_at_a_cell_that_is_gone_is_found(link: Link, unhosted: Unhosted) -> None:
    await sent(unhosted)
    await apply(unhosted, tree("/b"))

    await unhosted.look()
    await passes(link, 10)

    assert await unhosted.look() == {"/a": 1}


async def test_what_a_dead_worker_held_and_what_is_broken_goes_too(
    link: Link, unhosted: Unhosted
) -> None:
    await sent(unhosted)
    await link.command("XADD", KEYS.cell("/a"), "*", "head", b"\xc1", "body", b"b")
    await Inbox(link, "worker-9").read([KEYS.cell("/a")], count=9, block_ms=None)

    await unhosted.look()
    await passes(link, 10)

    assert await unhosted.look() == {"/a": 2}
    assert await backlog(link) == 0
    codes = sorted(letter.code for letter in await DeadLetters(link, KEYS).list())
    assert codes == ["cell_inactive", "envelope_invalid"]


async def test_keepers_that_race_bury_once(link: Link, unhosted: Unhosted) -> None:
    for _ in range(70):
        await sent(unhosted)
    other = Unhosted(unhosted.streams, unhosted.publication)
    for keeper in (unhosted, other):
        await keeper.look()
    await passes(link, 10)

    await asyncio.gather(unhosted.look(), other.look())

    assert await DeadLetters(link, KEYS).count() == 70
    assert await backlog(link) == 0


async def test_letters_that_bring_a_blob_are_committed_one_by_one(
    link: Link, unhosted: Unhosted
) -> None:
    sizes: list[int] = []

    class Counting(Streams):
        async def commit(self, steps: Sequence[Step]) -> list[Outcome]:
            sizes.append(len(steps))
            return await super().commit(steps)

    large = Body.of(Entry.say("user", "x" * 2000))
    unhosted.streams = Counting(link, KEYS, Blobs(link, KEYS, inline_max_bytes=1000))
    traces = [await sent(unhosted, body=body) for body in (large, large, HELLO, HELLO)]
    sizes.clear()

    await unhosted.look()
    await passes(link, 10)
    assert await unhosted.look() == {"/a": 4}

    assert sorted(sizes) == [1, 1, 2]
    letters = await DeadLetters(link, KEYS).list()
    assert sorted(letter.trace_id for letter in letters) == sorted(traces)
