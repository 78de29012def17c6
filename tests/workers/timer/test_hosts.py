"""Many hosts with one timer: each tick is born once, whoever is there to fire it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from colony.codec import decode_head
from colony.keys import Keys
from colony.link import Link
from colony.sources import LiveSource
from colony.testing.claims import eventually
from colony.testing.fleet import Fleet
from colony.testing.nursery import Nursery
from colony.topology.model import CellSettings, CellSpec, Topology, TopologySpec
from colony.traces import Traces
from workers.timer import Timer
from workers.timer.firing import Firing

KEYS = Keys("test")
SPEC = CellSpec(path="/timer", cell=CellSettings(type="timer"))
TOPOLOGY = Topology.compile(TopologySpec(cells=(SPEC,)), version=1)
SECOND = {"cron": "* * * * * *", "text": "tick"}


class Clock(LiveSource):
    """A source whose time the test sets, and each process has a little of its own."""

    now = 0
    late = 0

    async def clock(self) -> int:
        return self.now + self.late


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


async def test_of_many_hosts_one_fires_each_tick(link: Link) -> None:
    params = Timer.Params.model_validate({"schedules": {"s": SECOND, "t": SECOND}})
    hosts = []
    for late in range(5):
        source = Clock(link=link, keys=KEYS, spec=SPEC, directory=None, topology=lambda: TOPOLOGY)
        source.late = late
        hosts.append((source, Firing(params.schedules, catch_up_ms=params.catch_up_ms)))
    for now in range(10_500, 31_000, 500):
        for source, _ in hosts:
            source.now = now
        await asyncio.gather(*(firing.fire(source) for source, firing in hosts))

    entries = await link.command("XRANGE", KEYS.router(), "-", "+")
    fired = [decode_head(fields[1]).hop for _, fields in entries]
    for schedule in ("s", "t"):
        own = [hop for hop in fired if hop["schedule_id"] == schedule]
        assert [hop["scheduled_at"] for hop in own] == [*range(11_000, 31_000, 1_000)]
        assert [hop["iteration_n"] for hop in own] == [*range(1, 21)]
        assert {hop["skipped_n"] for hop in own} == {0}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


@pytest.fixture
def fleet(nursery: Nursery, redis_url: str) -> Iterator[Fleet]:
    with Fleet(nursery, redis_url, "test") as started:
        yield started


async def test_ticks_go_on_when_a_host_is_killed(fleet: Fleet, link: Link, tmp_path: Path) -> None:
    edge = {"from": "./timer", "to": "./sink"}
    timer = {"cell": {"type": "timer"}, "params": {"schedules": {"s": SECOND}}}
    files = {
        "": {"cell": {"type": "hive"}, "params": {"graph": {"edges": [edge]}}},
        "timer": timer,
        "sink": {"cell": {"type": "sink"}},
    }
    for name, content in files.items():
        (tmp_path / "main" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "main" / name / "config.json").write_text(json.dumps(content))
    await fleet.publish(tmp_path)
    fleet.router()
    workers = [fleet.worker() for _ in range(2)]
    traces = Traces(link, KEYS)

    async def fired(count: int) -> list[int]:
        """The ticks that came out at the sink, once there are so many."""

        async def enough() -> list[str]:
            ids = await traces.ids("ended", limit=999)
            return ids if len(ids) >= count else []

        ids = await eventually(enough, f"{count} ticks")
        outputs = [output for trace_id in ids for output in await traces.outputs(trace_id)]
        return sorted(output["hop"]["scheduled_at"] for output in outputs)  # type: ignore[index, call-overload]

    await fired(2)
    workers[0].kill()
    await workers[0].ended()
    ticks = await fired(5)

    assert len({*ticks}) == len(ticks)
    assert all(tick % 1_000 == 0 for tick in ticks)
