"""Budget: what six rounds of the shipped `tool-loop` cost in hops while processes race for them.

`python -m bench.budget [--runs N] [--workers N]` prints how often each cost was seen, and ends with
an error where one lies outside of 3 + 12 R to 3 + 13 R.
"""

import argparse
import asyncio
import sys
from collections import Counter

from bench.contenders import NAME, WARM_UP, running, send, until_ended
from colony.keys import Keys
from colony.link import Link
from colony.topology.load import load
from colony.topology.model import TopologySpec
from colony.traces import Traces
from colony.trees import shipped

ROUNDS = 6
TTL = 1_000_000


def tool_loop(rounds: int) -> TopologySpec:
    """The shipped tree, its model asking `rounds` times for the tool."""
    spec = load(shipped("tool-loop"), environment={}).publishable()
    script = [{"tool_calls": [{"name": "tool-a"}]}] * rounds + [{"text": "42"}]
    cells = (
        cell.model_copy(update={"params": {**cell.params, "script": script}})
        if cell.path == "/llm"
        else cell
        for cell in spec.cells
    )
    return spec.model_copy(update={"cells": tuple(cells)})


async def costs(url: str, runs: int) -> Counter[int]:
    """How often each number of hops was spent between the admission and the sink."""
    link, keys = Link(url), Keys(NAME)
    traces, spent = Traces(link, keys), Counter[int]()
    asked = await send(link, keys, "/capture", WARM_UP + runs)
    await until_ended(link, keys, len(asked))
    for trace_id in asked[WARM_UP:]:
        log = await traces.log(trace_id)
        spent.update(TTL - hop.head.ttl for hop in log if hop.head.target == "/sink")
    await link.close()
    return spent


def main() -> None:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.budget", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    given = parser.parse_args()
    with running(tool_loop(ROUNDS), workers=given.workers) as url:
        spent = asyncio.run(costs(url, given.runs))
    for hops, count in sorted(spent.items()):
        print(f"{hops} hops: {count} of {spent.total()}")
    least, most = 3 + 12 * ROUNDS, 3 + 13 * ROUNDS
    if spent.total() != given.runs or not all(least <= hops <= most for hops in spent):
        sys.exit(f"expected {given.runs} answers, each after {least} to {most} hops")


if __name__ == "__main__":
    main()
