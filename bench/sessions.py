"""Sessions: many of them, each with several questions, sent at once to several workers.

`python -m bench.sessions [--sessions N] [--questions N] [--workers N]` prints what it found, and
ends with an error where a question overtook an older one of its session or was not answered.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.contenders import NAME, running, tree_of, until_ended
from bench.measure import machine
from colony.body import Body, Entry
from colony.keys import Keys
from colony.link import Link
from colony.slots import holders
from colony.testing.claims import eventually
from colony.traces import Traces

TREE = "sessions"


@dataclass(frozen=True)
class Answer:
    """A question from the moment it went to work to the end of its trace, in milliseconds."""

    began: int
    ended: int
    completed: bool


@dataclass(frozen=True)
class Found:
    """What became of the questions of all sessions.

    `out_of_order` went to work before an older one of their session did, `overlapping` before an
    older one had ended; `at_once` is the greatest number of sessions that were at work together.
    """

    sessions: int
    questions: int
    answered: int
    out_of_order: int
    overlapping: int
    at_once: int
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether every question was answered, and none before its turn."""
        return self.answered == self.questions and not (self.out_of_order or self.overlapping)


async def ask(url: str, *, sessions: int, questions: int, workers: int) -> Found:
    """Send the questions once all workers are there, and look at each when all have ended."""
    link, keys = Link(url), Keys(NAME)
    traces = Traces(link, keys)

    async def served() -> bool:
        return len(await holders(link, keys, "worker")) >= workers

    async def send(session: str) -> list[str]:
        # One after the other, so that their order is known; none waits for an answer.
        body = Body.of(Entry.say("user", "go"))
        context = {"session_id": session}
        return [
            (await traces.birth("/prep", body, ttl=64, context=context)).trace_id
            for _ in range(questions)
        ]

    await eventually(served, f"{workers} workers serve")
    started = time.perf_counter()
    asked = await asyncio.gather(*(send(f"session {n}") for n in range(sessions)))
    await until_ended(link, keys, sessions * questions)
    seconds = time.perf_counter() - started
    answers = [[await _answer(traces, trace_id) for trace_id in of_one] for of_one in asked]
    await link.close()
    return _judge(answers, seconds)


async def _answer(traces: Traces, trace_id: str) -> Answer:
    trace = await traces.get(trace_id)
    began = [hop.at for hop in await traces.log(trace_id) if hop.head.target == "/work"]
    return Answer(min(began, default=0), trace.ended_at or 0, trace.cause == "completed")


def _judge(answers: Sequence[Sequence[Answer]], seconds: float) -> Found:
    steps = [pair for of_one in answers for pair in pairwise(of_one)]
    # At the same moment the end of one comes before the beginning of the next.
    moments = sorted(
        moment for of_one in answers for a in of_one for moment in ((a.began, 1), (a.ended, -1))
    )
    at_once = most = 0
    for _, change in moments:
        at_once += change
        most = max(most, at_once)
    every = [answer for of_one in answers for answer in of_one]
    return Found(
        sessions=len(answers),
        questions=len(every),
        answered=sum(answer.completed for answer in every),
        out_of_order=sum(later.began < earlier.began for earlier, later in steps),
        overlapping=sum(later.began < earlier.ended for earlier, later in steps),
        at_once=most,
        seconds=seconds,
    )


def main() -> None:
    """Ask, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=50, metavar="N")
    parser.add_argument("--questions", type=int, default=3, metavar="N", help="of each session")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    given = parser.parse_args()
    with running(tree_of(TREE), workers=given.workers) as url:
        found = asyncio.run(ask(url, **vars(given)))
    print(f"# {machine()}, {given.workers} workers\n")
    print(f"{found.sessions} sessions, {found.questions} questions, {found.answered} answered")
    print(f"  out of order: {found.out_of_order}")
    print(f"  overlapping within a session: {found.overlapping}")
    print(f"  sessions at work at once: {found.at_once}")
    print(f"  {found.seconds:.1f} s")
    if not found.sound:
        sys.exit("a question was answered before its turn, or not at all")


if __name__ == "__main__":
    main()
