"""Memory: what is left of many traces once their retention has passed.

`python -m bench.memory [--traces N]` lets N traces of every kind come and go, with a router and a
worker as the command line runs them, and prints keys and `used_memory` before, at the peak and
afterwards. It ends with an error unless there are as many keys as before and at most 5 % more
memory. What there was before is what a first, smaller number of traces left: tables are made then,
and processes connected.
"""

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

from pydantic import JsonValue

from bench.contenders import NAME, running
from colony.body import Body, Entry
from colony.keys import Keys
from colony.link import Link
from colony.testing.claims import eventually
from colony.topology.model import CellSettings, CellSpec, ColonySettings, EdgeSpec, TopologySpec
from colony.traces import Traces

WARM_UP = 2_000
BATCH = 250
AT_ONCE = 2_000
RETENTION_MS = 5_000
PATIENCE_S = 120.0
TOLERANCE = 1.05

_PLAIN = Body.of(Entry.say("user", "go"))
_LARGE = Body.of(Entry.say("user", "x" * 4_000))
_DEAD_END = Body.of(Entry.call("c", {"operation": "count", "table": "thread"}))
_COLUMNS: JsonValue = {
    "turn_id": "text",
    "iter": "int",
    "role": "text",
    "call_id": "text",
    "fired": "int",
}
_ROUND: dict[str, JsonValue] = {
    "operation": "settle",
    "table": "thread",
    "expects": ["a"],
    "answers": ["a"],
    "guard": {"role": "assistant", "fired": 0},
}


@dataclass(frozen=True)
class Reading:
    """What a server holds: keys, those of them that expire, and bytes."""

    keys: int
    mortal: int
    memory: int

    def __str__(self) -> str:
        return f"{self.keys:>9,} keys  {self.memory / 1e6:>8.2f} MB"


def tree(retention_ms: int) -> TopologySpec:
    """A store and a sink. What a count answers has no way to go: its trace fails."""
    thread: dict[str, JsonValue] = {
        "columns": _COLUMNS,
        "unique": [["turn_id", "iter", "role", "call_id"]],
        "index": ["turn_id"],
        "retain_s": math.ceil(retention_ms / 1000),
    }
    return TopologySpec(
        settings=ColonySettings(
            trace_retention_ms=retention_ms,
            dead_letter_retention_ms=retention_ms,
            idempotency_retention_ms=retention_ms,
            blob_inline_max_bytes=1_000,
        ),
        cells=(
            CellSpec(path="/sink", cell=CellSettings(type="sink")),
            CellSpec(
                path="/memory",
                cell=CellSettings(type="store"),
                params={"schema": {"thread": thread}},
            ),
        ),
        edges=(EdgeSpec(source="/memory", target="/sink", condition="hop.operation == 'settle'"),),
    )


async def come_and_go(link: Link, keys: Keys, count: int) -> Reading:
    """Let `count` traces begin, and wait until all have ended; the most that was held meanwhile.

    Of twenty, one has a large body, one is a round of a store, one fails and one has a guard.
    """
    traces, number = Traces(link, keys), iter(range(count))
    most = await read(link, keys)
    while batch := [n for _, n in zip(range(BATCH), number, strict=False)]:
        await asyncio.gather(*(_begin(traces, n) for n in batch))
        await _until_open(link, keys, AT_ONCE)
        now = await read(link, keys)
        most = Reading(*map(max, _numbers(most), _numbers(now)))
    await _until_open(link, keys, 0)
    return most


async def until_gone(link: Link, keys: Keys, *, most: float = math.inf) -> Reading:
    """Wait until nothing is left that expires or is swept, and at most so many bytes are used.

    What is held then, at the latest when patience ends.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # A server remembers slow commands with their arguments, more of them the busier it is.
        await link.command("SLOWLOG", "RESET")
        now = await read(link, keys)
        left = now.mortal + await _swept_last(link, keys)
        if (not left and now.memory <= most) or time.monotonic() > deadline:
            return now
        await asyncio.sleep(0.1)


async def read(link: Link, keys: Keys) -> Reading:
    """What the server holds now.

    The counts of repairs and the mark of an audit are left out: they are there or not whatever
    becomes of traces.
    """
    memory, keyspace, beside, marks = await asyncio.gather(
        link.command("INFO", "memory"),
        link.command("INFO", "keyspace"),
        link.command("EXISTS", keys.repairs(), keys.audit()),
        link.command("EXISTS", keys.audit()),
    )
    told = dict(line.split(":", 1) for line in memory.decode().splitlines() if ":" in line)
    space = dict(_counts(keyspace.decode()))
    return Reading(
        space.get("keys", 0) - beside, space.get("expires", 0) - marks, int(told["used_memory"])
    )


async def _begin(traces: Traces, number: int) -> None:
    target, body, guard = "/sink", _PLAIN, None
    match number % 20:
        case 0:
            body = _LARGE
        case 1:
            target, body = "/memory", _round()
        case 2:
            target, body = "/memory", _DEAD_END
        case 3:
            guard = str(uuid4())
    await traces.birth(
        target, body, ttl=64, guard=guard, guard_keep_ms=RETENTION_MS, inline_max_bytes=1_000
    )


def _round() -> Body:
    key: dict[str, JsonValue] = {"turn_id": str(uuid4()), "iter": 0}
    row: JsonValue = {**key, "role": "assistant", "call_id": "", "fired": 0}
    return Body.of(Entry.call("c", {**_ROUND, "key": key, "row": row}))


async def _until_open(link: Link, keys: Keys, most: int) -> None:
    async def few() -> bool:
        return int(await link.command("ZCARD", keys.open_traces())) <= most

    await eventually(few, f"at most {most} traces are open", patience_s=PATIENCE_S)


async def _swept_last(link: Link, keys: Keys) -> int:
    """How many ended traces, dead letters and rows wait for a sweep."""
    index = keys.store_index("/memory", "thread")
    counts = await asyncio.gather(
        link.command("ZCARD", keys.ended_traces()),
        link.command("XLEN", keys.dead()),
        link.command("ZCARD", index),
    )
    return sum(map(int, counts))


def _counts(keyspace: str) -> Iterator[tuple[str, int]]:
    for line in keyspace.splitlines():
        if line.startswith("db0:"):
            for pair in line.removeprefix("db0:").split(","):
                name, _, value = pair.partition("=")
                yield name, int(value)


def _numbers(reading: Reading) -> tuple[int, int, int]:
    return reading.keys, reading.mortal, reading.memory


async def measure(
    url: str, count: int, *, tolerance: float = TOLERANCE
) -> tuple[Reading, Reading, Reading]:
    """What the server holds before, at most during, and after `count` traces."""
    link, keys = Link(url), Keys(NAME)
    try:
        await come_and_go(link, keys, min(WARM_UP, count))
        before = await until_gone(link, keys)
        most = await come_and_go(link, keys, count)
        return before, most, await until_gone(link, keys, most=tolerance * before.memory)
    finally:
        await link.close()


def main() -> None:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--traces", type=int, default=100_000, metavar="N")
    given = parser.parse_args()
    started = time.monotonic()
    with running(tree(RETENTION_MS), workers=1) as url:
        before, most, after = asyncio.run(measure(url, given.traces))
    print(f"{given.traces} traces in {time.monotonic() - started:.0f} s")
    for name, reading in (("before", before), ("most", most), ("after", after)):
        print(f"  {name:<6} {reading}")
    if after.keys != before.keys or after.memory > TOLERANCE * before.memory:
        sys.exit("something of them is left")


if __name__ == "__main__":
    main()
