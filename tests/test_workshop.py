"""The workshop: which cells run, and what they are told of each other."""

import asyncio

import pytest

from colony.cell import Cell, cell_type
from colony.host import Host
from colony.keys import Keys
from colony.link import Link
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

ECHO = {"handler": "workers.toolloop.park:park"}


def cell(path: str, *, tool: bool = False) -> CellSpec:
    declared = ToolDeclaration(name=path[1:], description="A tool.", parameters={"type": "object"})
    contract = Contract(version="1", settings={}, consumes=Consumes(), tool=declared)
    settings = CellSettings(type="code")
    return CellSpec(path=path, cell=settings, params=ECHO, contract=contract if tool else None)


def tree(*tools: str) -> TopologySpec:
    edges = [EdgeSpec(source="/model", target="/dispatch")]
    edges += [EdgeSpec(source="/dispatch", target=tool) for tool in tools]
    cells = (cell("/model"), cell("/dispatch"), *(cell(tool, tool=True) for tool in tools))
    return TopologySpec(cells=cells, edges=tuple(edges))


async def test_a_cell_that_goes_on_running_is_told_of_a_tool_that_came_later(
    redis_url: str,
) -> None:
    async with Harness(redis_url, tree("/one")) as colony:
        await colony.publication.publish(tree("/one", "/two"))
        await colony.publication.refresh()

        tools = [tool.name for tool in colony.workshop.cells["/model"].tools]

    assert tools == ["one", "two"]


async def test_a_cell_that_does_not_stop_does_not_keep_its_process(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(self: Cell) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("colony.workshop.STOP_S", 0.05)
    async with Harness(redis_url, tree("/one")) as colony:
        monkeypatch.setattr(type(colony.workshop.cells["/one"].cell), "stop", never)
        async with asyncio.timeout(20):
            await colony.workshop.close()

    told = [line for line in caplog.messages if line.startswith("cell_stop_failed cell=/one")]
    assert len(told) == 1
    assert "TimeoutError" in told[0]


@pytest.mark.parametrize(
    ("own", "written", "expected"),
    [
        (0, None, 60_000),
        (0, 5, 5),
        (1_000, None, 60_000),
        (60_000, None, 65_000),
        (60_000, 30_000, 65_000),
        (1_000, 30_000, 30_000),
    ],
)
def test_a_handle_may_take_longer_than_the_cell_gives_its_own_work(
    own: int, written: int | None, expected: int
) -> None:
    class Params(Cell.Params):
        external_timeout_ms: int

    timeout_ms = Cell(Params(external_timeout_ms=own)).message_timeout_ms(written, 60_000)

    assert timeout_ms == expected


async def test_a_cell_that_runs_apart_is_known_and_not_started(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    async def start(self: Cell, host: Host) -> None:
        started.append(host.spec.path)

    monkeypatch.setattr(cell_type("code"), "start", start)
    link, keys = Link(redis_url), Keys("apart")
    workshop = Workshop(link, keys, apart=("job",))
    apart = CellSpec(path="/job", cell=CellSettings(type="code", isolation="job"), params=ECHO)

    await workshop.follow(Topology.compile(TopologySpec(cells=(apart, cell("/here")))))

    assert sorted(workshop.cells) == ["/here", "/job"]
    assert started == ["/here"]
    assert workshop.cells["/job"].origin is None
    await workshop.close()
    await link.close()
