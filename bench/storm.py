"""A storm: random faults every few seconds while questions come in, and what became of each.

`python -m bench.storm [--minutes N] [--rate N] [--seed N]` prints the sums, and ends with an error
where a question was lost, doubled or stalled, or went on before it was its turn. Processes are
killed, frozen and told to end, connections are cut, scripts forgotten, the server stands still.
Some questions are of sessions, and wait for the older ones of theirs. Every question is judged when
it ends; what ended is gone after its retention.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from bench.measure import machine, server
from colony.envelope import new_id
from colony.errors import ServerUnavailable
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.fleet import Fleet, Process
from colony.testing.nursery import Nursery
from colony.testing.redis_server import RedisServer
from colony.traces import Traces
from tests.faults.tree import ROOT, Question, Sums, ask, judge_traces, looping, spec

NAME: Final = "storm"
JOURNAL: Final = "journal-storm"
ROUNDS: Final = 6
ROUTERS, WORKERS = 2, 3
CLAIM_IDLE_S: Final = 1.0
# Longer than any question takes: rows of a thread go by their age.
RETENTION_S: Final = 180
EVERY_S: Final = (2.0, 5.0)
PATIENCE_S: Final = 60.0
TELL_S: Final = 60.0
# A machine that is too slow for the rate is asked less, so that no question takes minutes.
BACKLOG_MAX: Final = 500
# Of one session one question is answered at a time: each is asked seldom enough for that.
SESSIONS: Final = 12
IN_SESSION: Final = 5


@dataclass
class Storm:
    """What a soak has going."""

    redis: RedisServer
    fleet: Fleet
    link: Link
    rng: random.Random
    question: Question
    processes: list[Process] = field(default_factory=list)
    waiting: dict[str, Question] = field(default_factory=dict)
    journal: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    sums: Sums = field(default_factory=Sums)
    faults: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[int] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    asked: int = 0
    skipped: int = 0
    in_sessions: int = 0

    @property
    def keys(self) -> Keys:
        """The keys of the colony."""
        return self.fleet.keys

    # Questions

    async def ask_until(self, deadline: float, *, per_second: float) -> None:
        """Ask so often, whatever happens; what the server did not answer is asked again."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic()) < deadline:
                if now < due:
                    await asyncio.sleep(due - now)
                    continue
                due += 1 / per_second
                if len(self.waiting) < BACKLOG_MAX:
                    group.create_task(self._ask())
                else:
                    self.skipped += 1

    async def _ask(self) -> None:
        trace_id, question = new_id(), self._next()
        while True:
            try:
                await ask(
                    self.link, self.keys, "rounds", trace_id=trace_id, session=question.session
                )
                break
            except ServerUnavailable:
                await asyncio.sleep(0.1)
        self.asked += 1
        self.waiting[trace_id] = question

    def _next(self) -> Question:
        """Every fifth question is of a session, one after the other."""
        number, rest = divmod(next(self.numbers), IN_SESSION)
        if rest:
            return self.question
        return replace(self.question, session=f"session-{number % SESSIONS}", waits_at="/prep")

    async def judge_for_ever(self) -> None:
        """Judge what has ended, every second, before it is gone."""
        while True:
            await asyncio.sleep(1)
            try:
                await self.judge_ended()
            except ServerUnavailable:
                continue

    async def judge_ended(self) -> None:
        """Judge every question that has ended and that nothing is under way for any more."""
        waiting = list(self.waiting)
        states = await asyncio.gather(
            *(self.link.command("HMGET", self.keys.trace(i), "state", "live") for i in waiting)
        )
        await self._read_journal()
        for trace_id, state in zip(waiting, states, strict=True):
            if state != [b"ended", b"0"]:
                continue
            # Judged before it is off the list: a lost connection must not lose count of it.
            question = self.waiting[trace_id]
            lines = self.journal.get(trace_id, ())
            found = await judge_traces(self.link, self.keys, {trace_id: question}, lines)
            trace = await Traces(self.link, self.keys).get(trace_id)
            self.latencies_ms.append((trace.ended_at or trace.created_at) - trace.created_at)
            del self.waiting[trace_id]
            self.journal.pop(trace_id, None)
            self._count(found)

    async def judge_rest(self) -> None:
        """Wait for what is left; once nothing ends any more, the rest is stalled."""
        left, deadline = len(self.waiting), time.monotonic() + PATIENCE_S
        while self.waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            await self.judge_ended()
            if len(self.waiting) < left:
                left, deadline = len(self.waiting), time.monotonic() + PATIENCE_S
        self._count(await judge_traces(self.link, self.keys, self.waiting, ()))
        self.in_sessions = len(self.sums.turns)
        self.sums.judge_order()
        self._count(Sums())
        letters = int(await self.link.command("XLEN", self.keys.dead()))
        if letters:
            self._count(Sums(lost=letters, notes=[f"{letters} dead letters"]))

    async def _read_journal(self) -> None:
        lines = await self.link.command("LRANGE", JOURNAL, 0, -1)
        # Taken off only once it is here: a reply may be lost.
        for line in lines:
            self.journal[json.loads(line)["trace"]].append(line)
        if lines:
            await self.link.command("LTRIM", JOURNAL, len(lines), -1)

    def _count(self, found: Sums) -> None:
        self.sums.add(found)
        for note in self.sums.notes:
            print(note, file=sys.stderr, flush=True)
        self.sums.notes.clear()

    # Faults

    def start(self) -> None:
        """Every role runs."""
        self.processes += [self.fleet.router() for _ in range(ROUTERS)]
        self.processes += [self.fleet.worker("--root", str(ROOT)) for _ in range(WORKERS)]

    async def rage_until(self, deadline: float) -> None:
        """A fault every few seconds."""
        kinds: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("kill -9", self._kill),
            ("SIGSTOP, SIGCONT", self._freeze),
            ("SIGTERM", self._terminate),
            ("CLIENT KILL", self._cut),
            ("SCRIPT FLUSH", self._forget_scripts),
            ("server stands still", self._pause),
        ]
        while time.monotonic() < deadline:
            await asyncio.sleep(self.rng.uniform(*EVERY_S))
            kind, act = self.rng.choice(kinds)
            try:
                await act()
            except ServerUnavailable:
                continue
            self.faults[kind] += 1

    async def _kill(self) -> None:
        victim = self.rng.choice(self.processes)
        victim.kill()
        await victim.ended()
        await asyncio.sleep(self.rng.uniform(0, 1))
        self._replace(victim)

    async def _freeze(self) -> None:
        victim = self.rng.choice(self.processes)
        victim.freeze()
        await asyncio.sleep(CLAIM_IDLE_S * self.rng.uniform(0.2, 3))
        victim.resume()

    async def _terminate(self) -> None:
        victim = self.rng.choice(self.processes)
        # What runs without it is the rest: the next one starts before it has drained.
        victim.terminate()
        self._replace(victim)
        status = await victim.ended()
        if status:
            self._count(Sums(stalled=1, notes=[f"SIGTERM ended with {status}:\n{victim.log}"]))

    async def _cut(self) -> None:
        listed = (await self.link.command("CLIENT", "LIST", "TYPE", "normal")).decode()
        ours = int(await self.link.command("CLIENT", "ID"))
        ids = [int(line.split()[0].removeprefix("id=")) for line in listed.splitlines()]
        chosen = self.rng.choice([i for i in ids if i != ours])
        await self.link.command("CLIENT", "KILL", "ID", chosen)

    async def _forget_scripts(self) -> None:
        await self.link.command("SCRIPT", "FLUSH")

    async def _pause(self) -> None:
        self.redis.pause()
        await asyncio.sleep(self.rng.uniform(0.1, 0.9))
        self.redis.resume()

    def _replace(self, gone: Process) -> None:
        self.processes.remove(gone)
        self.processes.append(self.fleet.again(gone))

    # Figures

    async def memory(self) -> tuple[int, int]:
        """Bytes the server uses, and keys it has."""
        info = (await self.link.command("INFO", "memory")).decode()
        used = next(line for line in info.splitlines() if line.startswith("used_memory:"))
        return int(used.partition(":")[2]), int(await self.link.command("DBSIZE"))

    async def tell_for_ever(self) -> None:
        """A line every minute, so that a run that is broken off is of use."""
        while True:
            await asyncio.sleep(TELL_S)
            sums, faults = self.sums, sum(self.faults.values())
            print(f"  {sums.ended} ended, {len(self.waiting)} under way, {faults} faults; lost "
                  f"{sums.lost}, duplicated {sums.doubled}, stalled {sums.stalled}",
                  file=sys.stderr, flush=True)  # fmt: skip


async def rage(*, minutes: float, rate: float, seed: int) -> int:
    """Run a storm and print what became of everything; 1 where something was not as it must be."""
    environment = {"COLONY_CLAIM_IDLE_S": str(CLAIM_IDLE_S), "COLONY_LOG_LEVEL": "warning",
                   "FAULTS_JOURNAL": JOURNAL, "COLONY_DRAIN_S": "10"}  # fmt: skip
    with (
        server() as redis,
        Nursery() as nursery,
        Fleet(nursery, redis.url, NAME, environment=environment) as fleet,
    ):
        link = Link(redis.url)
        tree = spec(rounds=ROUNDS, retention_s=RETENTION_S)
        await Publication(link, fleet.keys).publish(tree)
        storm = Storm(redis, fleet, link, random.Random(seed), looping("go", ROUNDS))
        storm.start()
        # Warm before memory is looked at: scripts, tables, the first traces.
        started = time.monotonic()
        await storm.ask_until(started + 5, per_second=rate / ROUNDS)
        before = await storm.memory()
        started = time.monotonic()
        deadline = started + minutes * 60
        beside = [asyncio.create_task(task) for task in
                  (storm.judge_for_ever(), storm.tell_for_ever())]  # fmt: skip
        await asyncio.gather(
            storm.ask_until(deadline, per_second=rate / ROUNDS), storm.rage_until(deadline)
        )
        seconds = time.monotonic() - started
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await storm.judge_rest()
        at_end = await storm.memory()
        await asyncio.sleep(RETENTION_S + 5)
        after = await storm.memory()
        await link.close()
    _tell(storm, seconds, before, at_end, after)
    return 0 if storm.sums.clean else 1


def _tell(
    storm: Storm,
    seconds: float,
    before: tuple[int, int],
    at_end: tuple[int, int],
    after: tuple[int, int],
) -> None:
    sums, latencies = storm.sums, sorted(storm.latencies_ms) or [0]
    rounds = storm.asked * ROUNDS
    figures: list[tuple[str, object]] = [
        ("machine", machine()),
        ("minutes", round(seconds / 60, 1)),
        ("questions accepted", sums.accepted),
        ("rounds", rounds),
        ("rounds per second", round(rounds / seconds, 1)),
        ("questions not asked, too many under way", storm.skipped),
        ("ended", sums.ended),
        ("lost", sums.lost),
        ("duplicated", sums.doubled),
        ("stalled", sums.stalled),
        ("in sessions", storm.in_sessions),
        ("out of order", sums.disordered),
        ("repeated handles", sums.repeats),
        ("from question to end, median s", latencies[len(latencies) // 2] / 1000),
        ("from question to end, worst s", latencies[-1] / 1000),
        *((f"faults: {kind}", count) for kind, count in sorted(storm.faults.items())),
        *(
            (f"server {when}: MB, keys", f"{used / 1e6:.1f}, {keys}")
            for when, (used, keys) in (
                ("at the start", before),
                ("at the end", at_end),
                ("after retention", after),
            )
        ),
    ]
    print("| figure | value |\n|---|---|")
    for name, value in figures:
        print(f"| {name} | {value} |")


def main() -> None:
    """Rage, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, metavar="N")
    parser.add_argument("--rate", type=float, default=100, metavar="N", help="rounds per second")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the faults")
    given = parser.parse_args()
    sys.exit(asyncio.run(rage(minutes=given.minutes, rate=given.rate, seed=given.seed)))


if __name__ == "__main__":
    main()
