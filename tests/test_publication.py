"""Publication: versions follow each other, and every process follows the newest one."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from colony.errors import TopologyConflict, TopologyError
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.claims import eventually
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, Topology, TopologySpec

KEYS = Keys("test")


def tree(*paths: str) -> TopologySpec:
    cells = tuple(CellSpec(path=path, cell=CellSettings(type="sink")) for path in paths)
    edges = tuple(EdgeSpec(source=path, target=paths[0]) for path in paths[1:])
    return TopologySpec(cells=cells, edges=edges)


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@pytest.fixture
def publication(link: Link) -> Publication:
    return Publication(link, KEYS)


async def test_each_publication_is_the_next_version(publication: Publication) -> None:
    assert await publication.publish(tree("/a")) == 1
    assert await publication.publish(tree("/a", "/b")) == 2

    assert await publication.refresh()
    assert publication.current.version == 2
    assert {*publication.current.cells} == {"/a", "/b"}
    assert not await publication.refresh()


async def test_publishing_the_same_tree_changes_nothing(publication: Publication) -> None:
    await publication.publish(tree("/a"))

    assert await publication.publish(tree("/a")) == 1
    assert await publication.publish(tree("/a"), expected=0) == 1


async def test_a_version_that_is_not_the_newest_cannot_be_followed(
    publication: Publication,
) -> None:
    await publication.publish(tree("/a"))

    with pytest.raises(TopologyConflict, match="expected version 0, found 1"):
        await publication.publish(tree("/b"), expected=0)

    assert await publication.publish(tree("/b"), expected=1) == 2


async def test_of_publications_that_race_each_that_wins_is_a_version(
    link: Link, publication: Publication
) -> None:
    answers = await asyncio.gather(
        *(publication.publish(tree(f"/c{n}"), expected=0) for n in range(8)),
        return_exceptions=True,
    )

    assert [a for a in answers if not isinstance(a, TopologyConflict)] == [1]


async def test_every_stream_has_its_group_before_the_version_is_out(
    link: Link, publication: Publication
) -> None:
    await publication.publish(tree("/a", "/b"))

    for stream in (KEYS.router(), KEYS.quiet(), KEYS.cell("/a"), KEYS.cell("/b")):
        ((_, name, *_),) = await link.command("XINFO", "GROUPS", stream)
        assert name.decode() == GROUP


async def test_cells_that_are_gone_are_remembered(link: Link, publication: Publication) -> None:
    await publication.publish(tree("/a", "/old"))
    await publication.publish(tree("/a", "/new"))

    known = await link.command("SMEMBERS", KEYS.cells())
    assert {*known} == {b"/a", b"/old", b"/new"}


async def test_a_follower_sees_each_version_before_it_is_routed_by(
    link: Link, publication: Publication
) -> None:
    seen: list[tuple[int, int]] = []

    async def follow(topology: Topology) -> None:
        seen.append((publication.current.version, topology.version))

    publication.follow(follow)
    await publication.publish(tree("/a"))
    watching = asyncio.create_task(publication.watch())
    await eventually(lambda: publication.current.version == 1)
    await Publication(link, KEYS).publish(tree("/b"))
    await eventually(lambda: publication.current.version == 2)
    watching.cancel()

    assert seen == [(0, 1), (1, 2)]


async def test_a_version_that_cannot_be_read_is_passed_over_and_the_next_one_taken(
    link: Link, publication: Publication, caplog: pytest.LogCaptureFixture
) -> None:
    await publication.publish(tree("/a"))
    await publication.refresh()
    await link.command("HSET", KEYS.topology(), "version", 2, "document", '{"from": "the future"}')

    with pytest.raises(TopologyError, match="version 2"):
        await publication.refresh()
    assert publication.current.version == 1

    with caplog.at_level(logging.ERROR, "colony.publication"):
        watching = asyncio.create_task(publication.watch())
        await eventually(lambda: caplog.messages)
    await publication.publish(tree("/b"))
    await eventually(lambda: publication.current.version == 3)
    watching.cancel()
    assert "topology_unreadable" in caplog.messages[0]


async def test_what_was_published_is_kept_where_the_server_lost_it(
    link: Link, publication: Publication
) -> None:
    await publication.publish(tree("/a"))
    await publication.refresh()
    await link.command("FLUSHALL")

    assert not await publication.refresh()
    assert publication.current.version == 1
