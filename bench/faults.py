"""Faults: what every one of them does to messages that were accepted, and how long it takes to
recover.

`python -m bench.faults [--agents] [--trials N] [--rows GLOB] [--side-by-side N] [--json]` prints a
table, each row when it is known, and ends with an error where a message was lost, doubled or
stalled, or its trace went on before it was its turn. With `--agents` the messages are prompts, and
what is judged are their runs: log, text, history, and what was changed.
"""

import argparse
import asyncio
import fnmatch
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.measure import machine, server
from colony.link import Link
from colony.testing.nursery import Nursery
from tests.faults.agents import rows as rows_of_agents
from tests.faults.agents import trial as trial_of_agents
from tests.faults.agents.rows import AgentRow
from tests.faults.rows import Row, rows
from tests.faults.tree import Sums
from tests.faults.trial import CLAIM_IDLE_S, Ground, Result, run

HEAD = (
    "| fault | point | trials | accepted | ended | lost | duplicated | stalled "
    "| out of order | repeated handles | median s | worst s |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass
class Tally:
    """What came of the trials of one row. `missed` are those whose fault never happened."""

    row: Row | AgentRow
    trials: int = 0
    missed: int = 0
    sums: Sums = field(default_factory=Sums)
    recoveries: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether something was tried, and nothing went wrong."""
        return self.sums.clean and bool(self.recoveries)

    def told(self) -> dict[str, object]:
        """The row as a JSON object."""
        sums = self.sums
        role, point, _ = self.row.name.split("/")
        return {
            "fault": self.row.action,
            "point": f"{role} {point}",
            "trials": self.trials - self.missed,
            "accepted": sums.accepted,
            "ended": sums.ended,
            "lost": sums.lost,
            "duplicated": sums.doubled,
            "stalled": sums.stalled,
            "out_of_order": sums.disordered,
            "repeated_handles": sums.repeats,
            "median_s": round(statistics.median(self.recoveries), 2) if self.recoveries else None,
            "worst_s": round(max(self.recoveries), 2) if self.recoveries else None,
            "missed": self.missed,
            "seconds": round(self.seconds, 1),
        }

    def line(self) -> str:
        """The row as a line of the table."""
        told = self.told()
        del told["missed"], told["seconds"]
        return "| " + " | ".join(str(value) for value in told.values()) + " |"


def played(ground: Ground, row: Row | AgentRow, seed: int) -> Awaitable[Result]:
    """A trial of a row, of whichever kind it is."""
    if isinstance(row, AgentRow):
        return trial_of_agents.run(ground, row, seed)
    return run(ground, row, seed)


async def tally(ground: Ground, row: Row | AgentRow, *, trials: int, side_by_side: int) -> Tally:
    """So many trials of a row, so many at once; what goes wrong is told at once."""
    found, slots, started = Tally(row), asyncio.Semaphore(side_by_side), time.monotonic()

    async def one(seed: int) -> None:
        async with slots:
            result = await played(ground, row, seed)
        found.trials += 1
        found.missed += result.missed
        if result.missed:
            return
        found.sums.add(result.sums)
        found.recoveries.append(result.recovery_s)
        if not result.clean:
            print(row.name, f"seed {seed}", *result.sums.notes, sep="\n", file=sys.stderr)

    await asyncio.gather(*(one(seed) for seed in range(trials)))
    found.seconds = time.monotonic() - started
    return found


async def table(
    chosen: Sequence[Row | AgentRow], *, trials: int, side_by_side: int, as_json: bool
) -> Iterable[Tally]:
    """Print every row as it is known; all of them in the end."""
    tallies: list[Tally] = []
    # Long-lived: a trial is a colony of its own on one server, its processes forks of one.
    with server() as redis, Nursery() as nursery:
        link = Link(redis.url)
        ground = Ground(redis.url, link, nursery)
        for row in chosen:
            found = await tally(ground, row, trials=trials, side_by_side=side_by_side)
            tallies.append(found)
            print(json.dumps(found.told()) if as_json else found.line(), flush=True)
        await link.close()
    return tallies


def main() -> None:
    """Try, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="trials of each row")
    parser.add_argument("--rows", default="*", metavar="GLOB", help="ROLE/POINT/FAULT")
    parser.add_argument("--side-by-side", type=int, default=8, metavar="N", help="trials at once")
    parser.add_argument("--agents", action="store_true", help="runs of agents instead")
    parser.add_argument("--json", action="store_true", help="a JSON object for each row")
    given = parser.parse_args()
    every: Iterable[Row | AgentRow] = rows_of_agents.rows() if given.agents else rows()
    chosen = [row for row in every if fnmatch.fnmatch(row.name, given.rows)]
    if not chosen:
        sys.exit(f"no row is called {given.rows}")
    if not given.json:
        idle_s = trial_of_agents.CLAIM_IDLE_S if given.agents else CLAIM_IDLE_S
        print(f"# {machine()}; claim idle {idle_s} s, {given.side_by_side} side by side\n")
        print(HEAD, flush=True)
    tallies = asyncio.run(
        table(chosen, trials=given.trials, side_by_side=given.side_by_side, as_json=given.json)
    )
    bad = [found.row.name for found in tallies if not found.clean]
    if bad:
        sys.exit(f"not clean: {', '.join(bad)}")


if __name__ == "__main__":
    main()
