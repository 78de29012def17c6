"""`python -m tests.simulator`: play seeds, or show what each guard is good for.

With `--agents` what is played are runs of agents, and the guards are those of their scripts.

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
from tests.simulator.agent_mutations import AGENT_MUTATIONS
from tests.simulator.agent_play import AgentStage, play_agents, shown_with_agents
from tests.simulator.chances import FAULT_RATE, various
from tests.simulator.mutation import Mutation, Shown, shown
from tests.simulator.mutations import MUTATIONS
from tests.simulator.play import hush, play, staged
from tests.simulator.stage import Stage

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


AGENT_COLUMNS = {
    **{title: COLUMNS[title] for title in ("commits", "stale", "fenced", "unsent", "lost replies",
                                           "crashes", "claims", "handles", "expulsions",
                                           "restarts")},
    "runs": ("begin_run born",),
    "refused": ("begin_run busy", "begin_run awaiting", "begin_run retry_pending",
                "begin_run ineligible"),
    "asking": ("file_asks asked",),
    "answers": ("resolve_ask resolved",),
    "not counted": ("resolve_ask not_pending", "resolve_ask stale"),
    "repeated": ("begin_run repeated", "resolve_ask repeated"),
    "steers": ("steer_run accepted",),
    "steered": ("finish_run steered",),
    "finished": ("finish_run ended",),
    "ended": ("end_run ended",),
}  # fmt: skip


async def seeds(binary: Path, given: argparse.Namespace) -> bool:
    """Play them, print the sums, and return whether all was well."""
    sums: Counter[str] = Counter()
    steps, bad, began = 0, 0, time.monotonic()
    kind, how, columns = (
        (AgentStage, play_agents, AGENT_COLUMNS) if given.agents else (Stage, play, COLUMNS)
    )
    async with staged(binary, kind) as stage:
        for seed in range(given.start, given.start + given.seeds):
            chances = various(seed, fault_rate=given.fault_rate, restarts=given.restarts)
            played = await how(stage, seed, chances=chances)
            sums += played.counted
            steps += played.steps
            if played.violations:
                bad += 1
                print(played.story(), flush=True)
    print(f"seeds         {given.seeds} in {time.monotonic() - began:.0f} s")
    print(f"steps         {steps}")
    for title, names in columns.items():
        print(f"{title:13} {sum(sums[name] for name in names)}")
    print(f"violations    {bad}")
    return bad == 0


async def mutations(binary: Path, most: int) -> bool:
    """Print what breaks without each guard, and return whether each was missed."""
    missed = True
    async with staged(binary) as stage:
        for mutation in MUTATIONS:
            missed &= _told(mutation, await shown(stage, mutation, start=0, most=most))
    return missed


async def agent_mutations(binary: Path, most: int) -> bool:
    """The same for each guard of the runs of agents."""
    missed = True
    async with staged(binary, AgentStage) as stage:
        for mutation in AGENT_MUTATIONS:
            missed &= _told(mutation, await shown_with_agents(stage, mutation, start=0, most=most))
    return missed


def _told(mutation: Mutation, found: Shown | None) -> bool:
    how, what = (found.how, found.what) if found else ("not found", "NOTHING")
    print(f"{mutation.guard:56} {how:10} {what}", flush=True)
    return found is not None


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
    parser.add_argument("--agents", action="store_true", help="play runs of agents")
    given = parser.parse_args()
    binary = given.redis or packaged_binary() or find_binary({})
    guards = agent_mutations if given.agents else mutations
    well = guards(binary, given.seeds) if given.mutations else seeds(binary, given)
    with hush():
        sys.exit(0 if asyncio.run(well) else 1)


if __name__ == "__main__":
    main()
