"""The quiet lane of every tree that ships: what is lost is closed, answered, and bounded."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest

from colony.errors import MessageTimeout
from colony.keeping.audit import Audit
from colony.keeping.unhosted import Unhosted
from colony.streams import Delivery
from colony.testing.harness import Harness
from colony.topology.load import load
from colony.topology.model import QUIET
from colony.trees import shipped

CONVERT = {"name": "convert", "arguments": {"amount": 1, "unit": "miles"}, "id": "c"}
FETCH = {"name": "web_fetch", "arguments": {"url": "file:///dalen-sun-valve.md"}, "id": "f"}
WITHOUT = {"hello", "tool-loop"}
TREES = pytest.mark.parametrize(
    ("tree", "tool", "call"),
    [
        ("starter", "/convert", CONVERT),
        ("research", "/reader", FETCH),
        ("research-settle", "/reader", FETCH),
    ],
)
DONE = {"text": "done"}

Lose = Callable[[Harness, Delivery], Awaitable[object]]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is written in Python beside the starter can be imported, as where it is run."""
    monkeypatch.syspath_prepend(shipped("starter"))
    yield
    sys.modules.pop("tools", None)


def test_every_tree_that_ships_has_a_quiet_lane_but_the_fixture_and_hello() -> None:
    roots = {path.parents[1].name for path in shipped().glob("*/main/config.json")}
    assert roots >= WITHOUT | {"starter", "research", "research-settle"}

    for name in roots:
        edges = load(shipped(name), environment={}).publishable().edges
        lane = [edge for edge in edges if edge.source == QUIET]
        assert bool(lane) is (name not in WITHOUT), name
        # A run goes on until it has a result, whatever outputs it has.
        for edge in lane if name != "assistant" else ():
            assert "hop.outputs == 0 || has(hop.error_code)" in str(edge.condition)


@TREES
async def test_a_lost_call_is_told_to_the_model_which_answers(start, tree, tool, call):
    colony = await start(tree, script=[{"tool_calls": [call]}, DONE])

    trace = await colony.harness.ask("/prep", "go")
    await lose_at(colony.harness, tool)

    assert await colony.answer(trace) == "done"
    rows = await colony.rows("thread", trace_id=trace)
    assert ["was lost" in row["turn"] for row in rows if row["role"] == "tool"] == [True]
    assert (await colony.harness.trace(trace)).revivals == 1
    await colony.assert_clean(trace)


@TREES
async def test_a_call_that_somebody_deleted_is_told_to_the_model_which_answers(
    start, tree, tool, call
):
    """Nothing tells whose it was: the audit does, and the round is closed in its place."""
    colony = await start(tree, script=[{"tool_calls": [call]}, DONE])
    harness = colony.harness

    trace = await harness.ask("/prep", "go")
    await lose_at(harness, tool, delete)
    await harness.finish()
    assert (await harness.trace(trace)).live == 1
    await audit(harness)

    assert await colony.answer(trace) == "done"
    rows = await colony.rows("thread", trace_id=trace)
    [told] = [row["turn"] for row in rows if row["role"] == "tool"]
    assert "envelope_lost" in told
    record = await harness.trace(trace)
    assert (record.cause, record.dead, record.error_code) == ("completed", 1, "envelope_lost")


@TREES
async def test_a_lost_question_is_answered_that_it_was_lost(start, tree, tool, call):
    colony = await start(tree, script=[DONE])

    trace = await colony.harness.ask("/prep", "go")
    await lose_at(colony.harness, "/planner")

    assert "part of the work was lost" in await colony.answer(trace)
    await colony.assert_clean(trace)


@TREES
async def test_a_tool_that_dies_every_time_uses_up_the_revivals_and_the_trace_ends(
    start, tree, tool, call, monkeypatch
):
    """The model asks for it again and again: each round is closed, until no revival is left."""
    colony = await start(tree, script=[{"tool_calls": [call]}])
    cell = colony.harness.workshop.cells[tool].cell

    async def die(*_):
        raise MessageTimeout(path=tool, timeout_ms=60_000)

    monkeypatch.setattr(cell, "handle", die)

    trace = await colony.harness.ask("/prep", "go")
    await colony.harness.finish()

    limit = colony.harness.spec.settings.quiet_revivals
    record = await colony.harness.trace(trace)
    assert (record.state, record.cause, record.reason) == ("ended", "failed", "message_timeout")
    assert (record.revivals, record.dead, record.outputs) == (limit, limit + 1, 0)
    assert await colony.harness.attend() == []


@TREES
async def test_a_call_that_nobody_hosts_is_given_up_and_the_model_answers_without_it(
    start, tree, tool, call
):
    colony = await start(tree, script=[{"tool_calls": [call]}, DONE])
    harness = colony.harness
    await let_wait_only(harness, tool)

    trace = await harness.ask("/prep", "go")
    await run_without_host(harness, tool)

    assert await colony.answer(trace) == "done"
    rows = await colony.rows("thread", trace_id=trace)
    [told] = [row["turn"] for row in rows if row["role"] == "tool"]
    assert "cell_inactive" in told
    record = await harness.trace(trace)
    assert (record.state, record.cause, record.error_code) == (
        "ended",
        "completed",
        "cell_inactive",
    )
    [letter] = await harness.letters()
    assert (letter.code, letter.cell) == ("cell_inactive", tool)


async def test_without_a_lane_what_nobody_hosts_ends_its_trace_with_that_reason(start):
    colony = await start("hello")
    harness = colony.harness
    await let_wait_only(harness, "/greeter")

    trace = await harness.ask("/greeter", "go")
    await run_without_host(harness, "/greeter")
    await harness.finish()

    record = await harness.trace(trace)
    assert (record.state, record.cause, record.reason) == ("ended", "failed", "cell_inactive")


async def delete(harness: Harness, delivery: Delivery) -> None:
    """Delete an entry under its holder, whose commit comes too late then."""
    await harness.link.command("XDEL", delivery.source, delivery.entry)
    assert (await harness.drop(delivery)).token == "stale"


async def audit(harness: Harness) -> None:
    """Search for what was lost, as a keeper does, and report what is quiet then."""

    async def attend(_: str) -> None:
        raise AssertionError("nothing is quiet yet")

    audit = Audit(harness.link, harness.keys, harness.publication, attend)
    assert len(await audit.look()) == 1


async def lose_at(harness: Harness, path: str, lose: Lose = Harness.drop) -> None:
    """Run, and lose the first delivery for a cell."""
    lost = False
    while pending := await harness.pending():
        if not lost and harness.owner(pending[0]) == path:
            lost = True
            await lose(harness, pending[0])
        else:
            await harness.step(pending[0])
    assert lost


async def let_wait_only(harness: Harness, path: str) -> None:
    """Publish the tree once more, with next to no patience for what waits at one cell."""
    cells = tuple(
        cell.model_copy(update={"cell": cell.cell.model_copy(update={"message_timeout": 1})})
        if cell.path == path
        else cell
        for cell in harness.spec.cells
    )
    settings = harness.spec.settings.model_copy(update={"unhosted_after_ms": 1})
    spec = harness.spec.model_copy(update={"cells": cells, "settings": settings})
    await harness.publication.publish(spec)
    await harness.publication.refresh()


async def run_without_host(harness: Harness, path: str) -> None:
    """Run but for one cell, until what waits there was given up."""
    while waiting := await harness.pending():
        others = [delivery for delivery in waiting if harness.owner(delivery) != path]
        if not others:
            break
        await harness.step(others[0])
    unhosted = Unhosted(harness.streams, harness.publication)
    assert await unhosted.look() == {}
    async with asyncio.timeout(30):
        while not (given_up := await unhosted.look()):
            await harness.pending()
    assert given_up == {path: 1}
    [delivery] = waiting
    assert (await harness.drop(delivery)).token == "stale"
