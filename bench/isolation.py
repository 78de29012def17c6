"""Isolation: what it costs that a code cell runs apart from its worker.

`python -m bench.isolation [--runs N]` sends N messages, one after the other, to a cell that does
nothing, once for each way it can run, and prints the milliseconds from the birth of a message until
what came of it is kept. Router and worker are the same for all of them; `python3 -c pass` beside
them is what a new interpreter costs alone.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.measure import machine
from colony.body import Body, Entry
from colony.embedded import find_binary, packaged_binary
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.roles import Router, Worker
from colony.testing.redis_server import RedisServer
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec
from colony.traces import Traces

NAME = "isolation"
WARM_UP = 3
LOOK_S = 0.0005
PATIENCE_S = 60.0
HANDLER = "bench.handlers:pass_on"
SCRIPT = "import sys\nsys.stdin.read()\nprint('{\"messages\": []}')\n"

CELLS = {
    "handler, inline": CellSpec(
        path="/inline", cell=CellSettings(type="code"), params={"handler": HANDLER}
    ),
    "handler, process": CellSpec(
        path="/process",
        cell=CellSettings(type="code", isolation="process"),
        params={"handler": HANDLER},
    ),
    "script, warm": CellSpec(
        path="/script", cell=CellSettings(type="code"), params={"script_inline": SCRIPT}
    ),
    "handler, job": CellSpec(
        path="/job", cell=CellSettings(type="code", isolation="job"), params={"handler": HANDLER}
    ),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.isolation", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="messages for each way")
    given = parser.parse_args()
    print(f"# {machine()}\n")
    print("| what | median ms | fastest | slowest |\n|---|---|---|---|")
    for name, times in asyncio.run(measured(given.runs)).items():
        told = (statistics.median(times), min(times), max(times))
        print(f"| {name} | " + " | ".join(f"{ms:.1f}" for ms in told) + " |")


async def measured(runs: int) -> dict[str, list[float]]:
    """Milliseconds of each message, by the way its cell runs."""
    binary = packaged_binary() or find_binary(os.environ)
    with RedisServer.start(binary) as server:
        async with _colony(server.url) as traces:
            found = {}
            for name, cell in CELLS.items():
                times = [await _one(traces, cell.path) for _ in range(WARM_UP + runs)]
                found[name] = times[WARM_UP:]
    found["python3 -c pass"] = [await asyncio.to_thread(_interpreter) for _ in range(runs)]
    return found


async def _one(traces: Traces, path: str) -> float:
    began = time.perf_counter()
    trace_id = (await traces.birth(path, Body.of(Entry.say("user", "go")), ttl=64)).trace_id
    while not await traces.outputs(trace_id):
        if time.perf_counter() - began > PATIENCE_S:
            raise TimeoutError(f"nothing comes of {path}")
        await asyncio.sleep(LOOK_S)
    return (time.perf_counter() - began) * 1000


def _interpreter() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def _colony(url: str) -> AsyncIterator[Traces]:
    keys, link = Keys(NAME), Link(url)
    sink = CellSpec(path="/sink", cell=CellSettings(type="sink"))
    edges = tuple(EdgeSpec(source=cell.path, target="/sink") for cell in CELLS.values())
    spec = TopologySpec(cells=(*CELLS.values(), sink), edges=edges)
    await Publication(link, keys).publish(spec)
    roles = [Router(url, keys), Worker(url, keys)]
    serving = [asyncio.create_task(role.serve()) for role in roles]
    environment = {**os.environ, "COLONY_REDIS_URL": url, "COLONY_NAME": NAME}
    jobs = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "colony.cli", "jobs", "--log-level", "error"), env=environment
    )
    try:
        yield Traces(link, keys)
    finally:
        jobs.terminate()
        await jobs.wait()
        for role in roles:
            role.stop()
        await asyncio.gather(*serving)
        await link.close()


if __name__ == "__main__":
    main()
