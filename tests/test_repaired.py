"""A colony that runs, and a stranger with a Redis client: every message ends all the same."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from colony.body import Body, Entry
from colony.counts import Counts
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.pace import Pace
from colony.publication import Publication
from colony.roles import Router, Worker
from colony.testing.claims import eventually
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec
from colony.traces import Trace, Traces

KEYS = Keys("test")
SLOW = KEYS.cell("/slow")
HELLO = Body.of(Entry.say("user", "hello"))
PACE = Pace.of(claim_idle_s=0.4, drain_s=0.1)
HANDLERS = """
import asyncio

from colony.envelope import Emission

begun = []
let_go = asyncio.Event()


async def linger(envelope, params):
    begun.append(envelope.id)
    await let_go.wait()
    return Emission.say("done")
"""
SPEC = TopologySpec(
    cells=(
        CellSpec(
            path="/slow",
            cell=CellSettings(type="code"),
            params={"handler": "slow_handlers:linger"},
        ),
        CellSpec(path="/sink", cell=CellSettings(type="sink")),
    ),
    edges=(EdgeSpec(source="/slow", target="/sink"),),
)


class Colony:
    """A router and a worker, and what they are asked."""

    def __init__(self, link: Link, handlers: object) -> None:
        self.link = link
        self.traces = Traces(link, KEYS)
        self.handlers = handlers

    async def send(self, count: int) -> list[str]:
        """Messages that are all being handled when this returns."""
        births = [await self.traces.birth("/slow", HELLO, ttl=9) for _ in range(count)]

        async def begun() -> bool:
            return len(self.handlers.begun) == count  # type: ignore[attr-defined]

        await eventually(begun)
        return [born.trace_id for born in births]

    def let_go(self) -> None:
        self.handlers.let_go.set()  # type: ignore[attr-defined]

    async def ended(self, trace_ids: list[str]) -> list[Trace]:
        async def all_ended() -> bool:
            return all([(await self.traces.get(trace_id)).ended for trace_id in trace_ids])

        await eventually(all_ended)
        return [await self.traces.get(trace_id) for trace_id in trace_ids]

    async def counted(self, name: str) -> int:
        return (await Counts(self.link, KEYS).read())[name]


@pytest.fixture
async def colony(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Colony]:
    (tmp_path / "slow_handlers.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_handlers", raising=False)
    monkeypatch.setattr("colony.keeping.keeper.ORPHANS_S", 0.1)
    link = Link(redis_url)
    await Publication(link, KEYS).publish(SPEC)
    roles = [Router(redis_url, KEYS, PACE), Worker(redis_url, KEYS, PACE)]
    serving = [asyncio.create_task(role.serve()) for role in roles]
    yield Colony(link, importlib.import_module("slow_handlers"))
    for role in roles:
        role.stop()
    await asyncio.gather(*serving)
    await link.close()


@pytest.mark.parametrize("command", ["XDEL", "XTRIM"])
async def test_entries_that_are_deleted_under_a_handler_end_their_traces(
    colony: Colony, command: str
) -> None:
    """The handlers never return: only the renewal comes across it."""
    traces = await colony.send(3)
    pending = await colony.link.command("XPENDING", SLOW, GROUP, "-", "+", 9)
    what = [entry for entry, *_ in pending] if command == "XDEL" else ["MAXLEN", 0]

    await colony.link.command(command, SLOW, *what)

    for trace in await colony.ended(traces):
        assert (trace.cause, trace.reason, trace.live) == ("failed", "envelope_lost", 0)

    async def counted() -> bool:
        return await colony.counted("entries_lost") == 3

    await eventually(counted)
    assert (await colony.link.command("XPENDING", SLOW, GROUP))[0] == 0


async def test_entries_whose_consumer_is_deleted_are_handled_again(colony: Colony) -> None:
    traces = await colony.send(3)

    assert await colony.link.command("XGROUP", "DELCONSUMER", SLOW, GROUP, "worker-0") == 3
    colony.let_go()

    for trace in await colony.ended(traces):
        assert (trace.cause, trace.outputs, trace.dead) == ("completed", 1, 0)
    assert await colony.counted("entries_lost") == 0


async def test_entries_whose_consumer_is_deleted_while_they_are_handled_are_taken_from_nobody(
    colony: Colony,
) -> None:
    """They are handled on for as long as it takes until the renewal finds the claim lost."""
    traces = await colony.send(2)
    await colony.link.command("XGROUP", "DELCONSUMER", SLOW, GROUP, "worker-0")

    async def adopted() -> bool:
        return await colony.counted("orphans_adopted") == 2

    await eventually(adopted)
    colony.let_go()

    for trace in await colony.ended(traces):
        assert (trace.cause, trace.outputs, trace.dead) == ("completed", 1, 0)


async def test_a_group_that_is_destroyed_under_load_is_made_again_and_all_ends_once(
    colony: Colony,
) -> None:
    traces = await colony.send(3)
    await colony.link.command("XGROUP", "DESTROY", SLOW, GROUP)
    colony.let_go()

    for trace in await colony.ended(traces):
        assert (trace.cause, trace.outputs, trace.dead) == ("completed", 1, 0)
    assert await colony.link.command("XLEN", SLOW) == 0
