"""Admission: a message from outside comes in as soon as there is a tree."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony.access.admission import Admission
from colony.body import Body, Entry
from colony.errors import TopologyMissing
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.topology.model import CellSettings, CellSpec, TopologySpec

KEYS = Keys("test")
HELLO = Body.of(Entry.say("user", "hello"))
TREE = TopologySpec(cells=(CellSpec(path="/sink", cell=CellSettings(type="sink")),))


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


async def test_without_a_tree_nothing_is_admitted(link: Link) -> None:
    admission = Admission(link, KEYS, Publication(link, KEYS))

    with pytest.raises(TopologyMissing):
        await admission.admit("/sink", HELLO)


class Raced(Publication):
    """Whoever asks finds that somebody else has just taken up the tree."""

    async def refresh(self) -> bool:
        await super().refresh()
        return await super().refresh()


async def test_the_first_messages_of_a_process_are_all_admitted_whoever_takes_up_the_tree(
    link: Link,
) -> None:
    await Publication(link, KEYS).publish(TREE)
    admission = Admission(link, KEYS, Raced(link, KEYS))

    births = await asyncio.gather(*(admission.admit("/sink", HELLO) for _ in range(5)))

    assert len({birth.trace_id for birth in births}) == 5
