"""Status: what keeps messages from being handled is told."""

from collections.abc import AsyncIterator

import pytest

from colony.access.status import read_status
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.slots import Slots
from colony.topology.model import CellSettings, CellSpec, TopologySpec

KEYS = Keys("test")
TREE = TopologySpec(cells=(CellSpec(path="/sink", cell=CellSettings(type="sink")),))


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


async def test_a_router_that_cannot_read_the_tree_is_told(link: Link) -> None:
    publication = Publication(link, KEYS)
    await publication.publish(TREE)
    router = Slots(link, KEYS, "router")

    await router.lease({"version": 0})
    (told,) = [p for p in (await read_status(link, KEYS, publication)).problems if "router" in p]
    assert "slot 0" in told

    await router.lease({"version": 1})
    problems = (await read_status(link, KEYS, publication)).problems
    assert [problem for problem in problems if "router" in problem] == []
