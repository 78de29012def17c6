"""The router's desk: what it reads, and from when on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from colony.body import Body, Entry
from colony.consumer import Pace
from colony.dead_letters import DeadLetters
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.roles import Router
from colony.router import RouterDesk
from colony.sessions import Sessions
from colony.slots import holders
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec
from colony.traces import Traces

KEYS = Keys("test")
HELLO = Body.of(Entry.say("user", "hello"))
TREE = TopologySpec(
    cells=(CellSpec(path="/sink", cell=CellSettings(type="sink")),),
    edges=(EdgeSpec(source="/x", target="/sink"),),
)
PACE = Pace(block_ms=50)


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while True:
            if await claim():
                return
            await asyncio.sleep(0.01)


async def test_a_router_reads_nothing_before_a_tree_is_known(redis_url: str) -> None:
    link = Link(redis_url)
    publication = Publication(link, KEYS)
    desk = RouterDesk(KEYS, publication, Sessions(link, KEYS))
    assert desk.sources() == ()

    await publication.publish(TREE)
    await publication.refresh()

    assert desk.sources() == (KEYS.router(),)
    await link.close()


@pytest.mark.parametrize("first", ["nothing", "unreadable"])
async def test_what_waits_for_a_tree_is_routed_by_the_first_that_can_be_read(
    redis_url: str, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    link = Link(redis_url)
    if first == "unreadable":
        odd = ("version", 99, "document", '{"from": "the future"}')
        await link.command("HSET", KEYS.topology(), *odd)
    await Traces(link, KEYS).birth("/sink", HELLO, ttl=9)

    async def serves() -> bool:
        return any(line.startswith("serving") for line in caplog.messages)

    async def routed() -> bool:
        return bool(await link.command("XLEN", KEYS.cell("/sink")))

    router = Router(redis_url, KEYS, PACE)
    with caplog.at_level(logging.INFO, "colony.roles"):
        serving = asyncio.create_task(router.serve())
        await until(serves)
    (holder,) = await holders(link, KEYS, "router")
    assert holder.about["version"] == 0

    await Publication(link, KEYS).publish(TREE)

    await until(routed)
    assert await DeadLetters(link, KEYS).count() == 0
    router.stop()
    await serving
    await link.close()
