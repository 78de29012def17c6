"""Asks: many of them, each answered the moment it is heard, by one or by several at once.

`python -m bench.asks [--asks N] [--sessions N] [--racers N]` follows sessions of an agent that asks
before every call, and says yes as soon as an ask is told. Then several say yes and no to each ask
of one more session at once. It prints what became of all, and ends with an error where a verdict
was lost or more than one counted, or a call was made otherwise than it was allowed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.agents import AGENT, Answer, agent_tree, at_work, calling, published
from bench.contenders import NAME
from bench.measure import machine, server
from colony.agent.asks import Verdict
from colony.engine import Engine, Run
from colony.errors import AskNotPending

# How many calls one answer of the model makes.
CALLS: Final = 10


@dataclass
class Found:
    """What became of asks that were each given so many verdicts.

    `effective` verdicts counted, `late` ones came behind another; `allowed` calls were `made` once,
    `wrong` ones twice, or without a yes, or not though there was one.
    """

    asks: int
    verdicts: int
    effective: int = 0
    late: int = 0
    approvals: int = 0
    allowed: int = 0
    made: int = 0
    wrong: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether one verdict on each ask counted, and every call was made as it says."""
        counted = self.asks == self.effective == self.approvals
        late = self.asks * (self.verdicts - 1)
        return counted and self.late == late and self.made == self.allowed and not self.wrong

    def __str__(self) -> str:
        return (
            f"{self.asks} asks, {self.verdicts} verdicts each: {self.effective} effective, "
            f"{self.late} too late, {self.approvals} approvals told\n"
            f"  calls allowed {self.allowed}, made once {self.made}, made wrongly {self.wrong}\n"
            f"  {self.asks / self.seconds:.0f} asks/s"
        )


def script(asks: int) -> list[Answer]:
    """A model that makes so many calls that are asked about, and answers then."""
    rounds = (calling(n, "change", calls=CALLS) for n in range(asks // CALLS))
    return [*rounds, {"text": "Done."}]


async def play(engines: Sequence[Engine], *, sessions: int, journal: Path) -> Found:
    """Runs of so many sessions, all engines giving a verdict on each of their asks."""
    started = time.perf_counter()
    found = Found(0, len(engines))
    allowed = [
        call
        for calls in await asyncio.gather(*(_run(engines, found) for _ in range(sessions)))
        for call in calls
    ]
    found.seconds = time.perf_counter() - started
    made = _made(journal, {run_id for run_id, _ in allowed})
    found.allowed = len(allowed)
    found.made = sum(made[call] == 1 for call in allowed)
    found.wrong = sum(made.values()) - found.made
    return found


def _made(journal: Path, runs: set[str]) -> Counter[tuple[str, str]]:
    """How often each call of these runs was made, those of other runs left out."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    return Counter((run_id, call_id) for run_id, call_id in lines if run_id in runs)


async def _run(engines: Sequence[Engine], found: Found) -> list[tuple[str, str]]:
    """The calls of a run that were allowed, each verdict given as soon as its ask is heard."""
    first = engines[0]
    session = await first.create_session(AGENT, limits={"max_consecutive_failures": 0})
    run = await first.run(session.id, "Go.")
    allowed: list[tuple[str, str]] = []
    async for event in run.events():
        if event.kind == "permission.ask":
            found.asks += 1
            if "allow_once" in await _answers(engines, run, str(event.payload["ask_id"]), found):
                allowed.append((run.id, str(event.payload["call_id"])))
        elif event.kind == "approval":
            found.approvals += 1
        elif event.kind == "result" and event.payload["stop"] != "end_turn":
            raise RuntimeError(f"the run stopped with {event.payload}")
    return allowed


async def _answers(engines: Sequence[Engine], run: Run, ask_id: str, found: Found) -> list[Verdict]:
    """The verdicts that counted, of as many as there are engines: every other one is a no."""
    verdicts: list[Verdict] = ["deny" if n % 2 else "allow_once" for n in range(len(engines))]
    answers = await asyncio.gather(
        *(
            engine.resolve(run.session_id, run.id, ask_id, verdict)
            for engine, verdict in zip(engines, verdicts, strict=True)
        ),
        return_exceptions=True,
    )
    counted: list[Verdict] = []
    for answer in answers:
        if isinstance(answer, AskNotPending):
            found.late += 1
        elif isinstance(answer, BaseException):
            raise answer
        else:
            counted.append(answer.verdict)
    found.effective += len(counted)
    return counted


async def measure(
    url: str, *, asks: int, sessions: int, racers: int, journal: Path
) -> tuple[Found, Found]:
    """What became of the asks of all sessions, and of those of one that many answer at once."""
    async with AsyncExitStack() as stack:
        tree = agent_tree(script(asks // sessions))
        engine = await stack.enter_async_context(published(url, tree))
        alone = await play([engine], sessions=sessions, journal=journal)
        others = [
            await stack.enter_async_context(await Engine.connect(url, colony=NAME))
            for _ in range(racers - 1)
        ]
        return alone, await play([engine, *others], sessions=1, journal=journal)


def main() -> None:
    """Ask, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.asks", description=__doc__)
    parser.add_argument("--asks", type=int, default=1000, metavar="N", help="of all sessions")
    parser.add_argument("--sessions", type=int, default=10, metavar="N")
    parser.add_argument("--racers", type=int, default=20, metavar="N", help="at each ask of one")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    given = vars(parser.parse_args())
    workers = given.pop("workers")
    print(f"# {machine()}, {workers} workers\n")
    with tempfile.NamedTemporaryFile() as file, server() as redis:
        journal = Path(file.name)
        with at_work(redis.url, workers=workers, journal=journal):
            found = asyncio.run(measure(redis.url, **given, journal=journal))
    print("\n".join(map(str, found)))
    if not all(each.sound for each in found):
        sys.exit("a verdict was lost, or more than one counted")


if __name__ == "__main__":
    main()
