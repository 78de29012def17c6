"""`python -m tests.simulator`: play seeds, or show what each guard is good for.

Without `--mutations`, ends with 1 where a seed broke something that must hold, and tells which.
With it, prints for each guard what broke without it and after how many seeds, and ends with 1 where
nothing did.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

from colony.embedded import find_binary, packaged_binary
from tests.simulator.chances import FAULT_RATE, various
from tests.simulator.mutation import shown
from tests.simulator.mutations import MUTATIONS
from tests.simulator.play import hush, play, staged

COLUMNS = {
    "commits": ("committed",),
    "stale": ("stale",),
    "fenced": ("fenced",),
    "unsent": ("unsent",),
    "lost replies": ("unanswered", "late"),
    "crashes": ("crashes",),
    "claims": ("claims",),
    "handles": ("effects",),
    "expulsions": ("expelled",),
    "restarts": ("restarts",),
    "parked": ("park parked",),
    "turns": ("park turn",),
    "held up": ("held up",),
}


async def seeds(binary: Path, given: argparse.Namespace) -> bool:
    """Play them, print the sums, and return whether all was well."""
    sums: Counter[str] = Counter()
    steps, bad, began = 0, 0, time.monotonic()
    async with staged(binary) as stage:
        for seed in range(given.start, given.start + given.seeds):
            chances = various(seed, fault_rate=given.fault_rate, restarts=given.restarts)
            played = await play(stage, seed, chances=chances)
            sums += played.counted
            steps += played.steps
            if played.violations:
                bad += 1
                print(played.story(), flush=True)
    print(f"seeds         {given.seeds} in {time.monotonic() - began:.0f} s")
    print(f"steps         {steps}")
    for title, names in COLUMNS.items():
        print(f"{title:13} {sum(sums[name] for name in names)}")
    print(f"violations    {bad}")
    return bad == 0


async def mutations(binary: Path, most: int) -> bool:
    """Print what breaks without each guard, and return whether each was missed."""
    missed = True
    async with staged(binary) as stage:
        for mutation in MUTATIONS:
            found = await shown(stage, mutation, start=0, most=most)
            missed &= found is not None
            how, what = (found.how, found.what) if found else ("not found", "NOTHING")
            print(f"{mutation.guard:56} {how:10} {what}", flush=True)
    return missed


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N")
    parser.add_argument("--start", type=int, default=0, metavar="SEED")
    parser.add_argument("--fault-rate", type=float, default=FAULT_RATE, metavar="RATE")
    parser.add_argument(
        "--restarts", type=int, default=3, metavar="N", help="at most, in every fifth seed"
    )
    parser.add_argument("--redis", type=Path, metavar="PROGRAM", help="the server to play on")
    parser.add_argument("--mutations", action="store_true")
    given = parser.parse_args()
    binary = given.redis or packaged_binary() or find_binary({})
    well = mutations(binary, given.seeds) if given.mutations else seeds(binary, given)
    with hush():
        sys.exit(0 if asyncio.run(well) else 1)


if __name__ == "__main__":
    main()
