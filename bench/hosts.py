"""Hosts: what a worker that joins or leaves a busy colony costs, each host a network namespace.

`python -m bench.hosts [--joins N] [--load N]` prints, for each join, how long the worker took to
its first delivery, and the longest time in which no round was finished while it came and went. It
ends with an error where a question was lost, or a round fired twice or not at all. Needs root.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.measure import machine
from colony.embedded import find_binary
from colony.keys import GROUP
from colony.testing.claims import eventually
from colony.testing.fleet import Process
from tests.faults.host_colony import CELLS, HostColony, Site
from tests.faults.hosts import NamespacesRefused

CLAIM_IDLE_S = 60.0
SETTLED = 200
WATCHED_S = 2.0


@dataclass(frozen=True)
class Visit:
    """A worker that came and went; moments in seconds since the epoch."""

    started: float
    served: float
    took: float
    told_to_leave: float
    left: float


async def visit(hosts: HostColony) -> Visit:
    """A worker starts from nothing on the third host, works for a while, and is told to leave."""
    started = time.time()
    worker = hosts.fleets["c"].worker(prefix=hosts["c"].prefix)
    await worker.serving()
    served = time.time()
    took = await first_delivery(hosts, worker)
    await asyncio.sleep(WATCHED_S)
    told_to_leave = time.time()
    await hosts.leave(worker)
    return Visit(started, served, took, told_to_leave, time.time())


async def first_delivery(hosts: HostColony, worker: Process) -> float:
    """When the worker was given work for the first time since it serves."""
    name = f"worker-{worker.events('serving')[0]['slot']}".encode()
    found: list[float] = []

    async def given() -> bool:
        for path in CELLS:
            listed = await hosts.link.command("XINFO", "CONSUMERS", hosts.keys.cell(path), GROUP)
            for told in listed:
                consumer = dict(zip(told[::2], told[1::2], strict=True))
                # It may be known from an earlier visit: only what comes now counts.
                if consumer[b"name"] == name and consumer[b"pending"]:
                    found.append(time.time() - consumer[b"idle"] / 1000)
        return bool(found)

    await eventually(given, "the worker is given work")
    return min(found)


async def race(hosts: HostColony, joins: int, load: int) -> tuple[list[Visit], list[float]]:
    """The visits, and the moments in which rounds were finished."""
    await hosts.pair("a")
    await hosts.pair("b")
    async with hosts.load(load) as ran:
        await eventually(lambda: ran.total() > SETTLED, "it settles")
        visits = [await visit(hosts) for _ in range(joins)]
    await hosts.assert_sound()
    rounds: list[float] = []
    for trace_id in hosts.asked:
        hops = await hosts.traces.log(trace_id)
        rounds += [hop.at / 1000 for hop in hops if hop.head.hop.get("route") == "fire"]
    return visits, sorted(rounds)


def longest_gap(rounds: list[float], since: float, until: float) -> float:
    """The longest time without a finished round between two moments."""
    within = [since, *(at for at in rounds if since < at < until), until]
    return max(after - before for before, after in pairwise(within))


def report(visits: list[Visit], rounds: list[float]) -> str:
    """The figures of all visits as Markdown, in seconds, and what is between visits for scale."""
    lines = [
        "| join | start to serving | serving to first delivery | start to first delivery "
        "| longest gap, joining | longest gap, leaving |",
        "|---|---|---|---|---|---|",
    ]
    for n, v in enumerate(visits, 1):
        joining = longest_gap(rounds, v.started, v.took + WATCHED_S)
        leaving = longest_gap(rounds, v.told_to_leave, v.left)
        figures = v.served - v.started, v.took - v.served, v.took - v.started, joining, leaving
        lines.append(f"| {n} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |")
    seconds = visits[-1].left - visits[0].started
    finished = [at for at in rounds if visits[0].started < at < visits[-1].left]
    between = statistics.quantiles([b - a for a, b in pairwise(finished)], n=100)[98]
    rate = f"{len(finished) / seconds:.0f} rounds/s"
    return "\n".join(
        [*lines, "", f"{rate} meanwhile; 99 % of rounds follow within {between:.3f} s"]
    )


async def measure(site: Site, joins: int, load: int) -> str:
    """The report of one colony."""
    with tempfile.TemporaryDirectory() as holds:
        opening = HostColony.open(site, "bench", Path(holds), claim_idle_s=CLAIM_IDLE_S)
        async with opening as hosts:
            return report(*await race(hosts, joins, load))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.hosts", description=__doc__)
    parser.add_argument("--joins", type=int, default=5, metavar="N")
    parser.add_argument("--load", type=int, default=40, metavar="N", help="questions under way")
    given = parser.parse_args()
    try:
        with Site.open(find_binary(os.environ)) as site:
            told = asyncio.run(measure(site, given.joins, given.load))
    except NamespacesRefused as error:
        raise SystemExit(f"this machine lets nobody make network namespaces: {error}") from None
    print(f"# {machine()}\n\n{told}")


if __name__ == "__main__":
    main()
