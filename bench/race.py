"""Race: many rounds raced for by collectors in several processes, results in any order and doubled.

`python -m bench.race [--rounds N] [--workers N] [--tree NAME]` prints what it counted and ends with
an error where a round fired twice or not at all, or anything became a dead letter.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter

from bench.contenders import NAME, running, send, tree_of, until_ended
from colony.keys import Keys
from colony.link import Link
from colony.topology.model import TopologySpec
from colony.traces import Traces

ROUNDS_PER_QUESTION = 6
AT_ONCE = 200


def restless(spec: TopologySpec) -> TopologySpec:
    """The tree with tools that answer late, in any order and more than once."""
    handler = "bench.handlers:restless_tool"
    return spec.model_copy(
        update={
            "cells": tuple(
                cell.model_copy(update={"params": {**cell.params, "handler": handler}})
                if cell.path in ("/a", "/b")
                else cell
                for cell in spec.cells
            )
        }
    )


async def race(url: str, questions: int) -> tuple[Counter[str], float]:
    """What was counted over all questions, and the seconds they took."""
    link, keys = Link(url), Keys(NAME)
    traces = Traces(link, keys)
    counted: Counter[str] = Counter()
    started = time.perf_counter()
    asked: list[str] = []
    while len(asked) < questions:
        asked += await send(link, keys, "/prep", min(AT_ONCE, questions - len(asked)))
        await until_ended(link, keys, len(asked))
    seconds = time.perf_counter() - started
    for trace_id in asked:
        trace = await traces.get(trace_id)
        counted[f"trace {trace.cause}"] += 1
        fires: Counter[object] = Counter()
        for record in await traces.log(trace_id):
            if record.head.target == "/planner" and record.head.sender == "/collector":
                fires[record.head.context["iter"]] += 1
            counted["hops"] += 1
            counted["results"] += record.head.hop.get("route") == "c_res"
        counted["fires"] += len(fires)
        counted["double fires"] += sum(count - 1 for count in fires.values())
        counted["answers"] += trace.outputs
    counted["dead letters"] += int(await link.command("XLEN", keys.dead()))
    await link.close()
    return counted, seconds


def main() -> None:
    """Race, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.race", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="processes that race")
    parser.add_argument("--tree", default="rounds-classic", help="rounds-classic or rounds-settle")
    given = parser.parse_args()
    questions = -(-given.rounds // ROUNDS_PER_QUESTION)
    with running(restless(tree_of(given.tree)), workers=given.workers) as url:
        counted, seconds = asyncio.run(race(url, questions))
    expected = questions * ROUNDS_PER_QUESTION
    print(f"{given.tree}, {given.workers} workers: {expected} rounds in {seconds:.0f} s")
    for name, count in sorted(counted.items()):
        print(f"  {name}: {count}")
    sound = (
        counted["fires"] == expected
        and counted["answers"] == questions
        and counted["trace completed"] == questions
        and not counted["double fires"]
        and not counted["dead letters"]
    )
    if not sound:
        sys.exit("the race was not clean")


if __name__ == "__main__":
    main()
