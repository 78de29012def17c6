"""Announcements: tools that a cell learns while it runs reach every worker, and outlive it."""

import importlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from colony.announcements import Announcements
from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import ConfigError
from colony.host import Host
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.harness import Harness
from colony.topology.model import (
    CellSettings,
    CellSpec,
    Consumes,
    Contract,
    EdgeSpec,
    ToolDeclaration,
    Topology,
    TopologySpec,
)
from colony.workshop import Workshop

KEYS = Keys("announced")


def tool(name: str, **parameters: Any) -> ToolDeclaration:
    schema = {"type": "object", **parameters}
    return ToolDeclaration(name=name, description="A tool.", parameters=schema)


def names(announcements: Announcements, path: str) -> list[str]:
    return [tool.declaration.name for tool in announcements.of(path)]


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


async def test_what_is_announced_here_is_known_elsewhere_after_a_look(link: Link) -> None:
    here, elsewhere = Announcements(link, KEYS), Announcements(link, KEYS)

    await here.announce("/git", [tool("git__log"), tool("git__show")])

    assert names(here, "/git") == ["git__log", "git__show"]
    assert await elsewhere.refresh()
    assert names(elsewhere, "/git") == ["git__log", "git__show"]
    assert not await elsewhere.refresh()


async def test_the_same_again_is_no_news(link: Link) -> None:
    here, elsewhere = Announcements(link, KEYS), Announcements(link, KEYS)
    await here.announce("/git", [tool("git__log")])
    await elsewhere.refresh()

    await Announcements(link, KEYS).announce("/git", [tool("git__log")])

    assert not await elsewhere.refresh()


async def test_the_last_announcement_of_a_cell_counts(link: Link) -> None:
    here, elsewhere = Announcements(link, KEYS), Announcements(link, KEYS)
    await here.announce("/git", [tool("git__log")])
    await here.announce("/git", [tool("git__show")])

    await elsewhere.refresh()

    assert names(elsewhere, "/git") == ["git__show"]


async def test_parameters_that_are_no_schema_are_not_announced(link: Link) -> None:
    here = Announcements(link, KEYS)

    with pytest.raises(ConfigError):
        await here.announce("/git", [tool("git__log", properties=7)])

    assert not await link.command("EXISTS", KEYS.announced())


async def test_a_server_that_lost_everything_is_told_again(link: Link) -> None:
    here, elsewhere = Announcements(link, KEYS), Announcements(link, KEYS)
    await here.announce("/git", [tool("git__log")])
    await here.refresh()
    await link.command("DEL", KEYS.announced())

    await here.refresh()
    await elsewhere.refresh()

    assert names(here, "/git") == names(elsewhere, "/git") == ["git__log"]


async def test_what_a_newer_colony_announces_is_passed_over(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    here = Announcements(link, KEYS)
    await link.command("HSET", KEYS.announced(), "version", 1, "/git", '[{"new": "shape"}]')

    await here.refresh()

    assert names(here, "/git") == []
    assert any("announcement_unreadable cell=/git" in line for line in caplog.messages)


def spec(path: str, kind: str = "probe", **more: Any) -> CellSpec:
    return CellSpec(path=path, cell=CellSettings(type=kind), **more)


def tree(*cells: CellSpec) -> TopologySpec:
    edges = [EdgeSpec(source="/model", target=cell.path) for cell in cells]
    return TopologySpec(cells=(spec("/model", "sink"), *cells), edges=tuple(edges))


async def test_a_tree_without_the_cell_withdraws_its_tools(link: Link) -> None:
    publication = Publication(link, KEYS)
    await publication.publish(tree(spec("/git", "sink"), spec("/time", "sink")))
    here = Announcements(link, KEYS)
    await here.announce("/git", [tool("git__log")])
    await here.announce("/time", [tool("time__now")])

    await publication.publish(tree(spec("/time", "sink")))

    fields = await link.command("HKEYS", KEYS.announced())
    assert set(fields) == {b"version", b"/time"}


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[ToolDeclaration]]:
    """What a cell of the type `probe` announces when it starts."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "probe"))
    probe = importlib.import_module("colony_probe").Probe
    tools: list[Sequence[ToolDeclaration]] = []

    async def start(self: object, host: Host) -> None:
        await host.announce(tools[-1])

    async def answer(envelope: Envelope, host: Host) -> list[Emission]:
        [call] = envelope.body.each("tool_call")
        return [Emission.of(Entry.result(call.id or "", "reached"))]

    monkeypatch.setattr(probe, "announces", True)
    monkeypatch.setattr(probe, "start", start)
    monkeypatch.setattr(probe, "ACTS", {"": answer})
    return tools


async def test_a_model_on_another_host_is_told_of_the_tools(
    link: Link, learned: list[Sequence[ToolDeclaration]]
) -> None:
    learned.append([tool("git__log")])
    topology = Topology.compile(tree(spec("/git")), 1)
    models = Workshop(link, KEYS, patterns=("/model",))
    servers = Workshop(link, KEYS, patterns=("/git",))
    await models.follow(topology)
    assert models.cells["/model"].tools == ()

    await servers.follow(topology)
    await models.take_up()

    assert [tool.name for tool in models.cells["/model"].tools] == ["git__log"]
    await models.close()
    await servers.close()


async def test_what_the_contract_declares_takes_the_place_of_what_is_announced(
    link: Link, learned: list[Sequence[ToolDeclaration]]
) -> None:
    learned.append([tool("git__log")])
    contract = Contract(version="1", settings={}, consumes=Consumes(), tool=tool("git"))
    workshop = Workshop(link, KEYS)

    await workshop.follow(Topology.compile(tree(spec("/git", contract=contract)), 1))

    assert [tool.name for tool in workshop.cells["/model"].tools] == ["git"]
    await workshop.close()


async def test_two_cells_that_announce_one_name_offer_it_once(
    link: Link, learned: list[Sequence[ToolDeclaration]]
) -> None:
    learned.append([tool("git__log")])
    workshop = Workshop(link, KEYS)

    await workshop.follow(Topology.compile(tree(spec("/git"), spec("/old/git")), 1))

    assert [tool.name for tool in workshop.cells["/model"].tools] == ["git__log"]
    await workshop.close()


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("git__log", {"count": 1}, "reached"),
        (
            "git__log",
            {"count": "many"},
            "invalid_arguments: count: 'many' is not of type 'integer'",
        ),
        ("git__show", {"count": "many"}, "reached"),
    ],
)
async def test_a_call_is_held_against_the_tool_that_it_names(
    redis_url: str,
    learned: list[Sequence[ToolDeclaration]],
    name: str,
    arguments: dict[str, Any],
    answer: str,
) -> None:
    learned.append([tool("git__log", properties={"count": {"type": "integer"}}), tool("git__show")])
    edges = (EdgeSpec(source="/git", target="/sink"),)
    cells = (spec("/git"), spec("/sink", "sink"))
    async with Harness(redis_url, TopologySpec(cells=cells, edges=edges)) as colony:
        body = Body.of(Entry.call("c-1", arguments))
        trace = await colony.send("/git", body, hop={"tool_name": name})
        await colony.run()
        [output] = await colony.outputs(trace)

    result: Any = output["body"]
    assert result["messages"][0]["text"] == answer
