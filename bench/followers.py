"""Followers: many of them at one session of an agent at work, and what they cost.

`python -m bench.followers [--followers N] [--http]` lets an agent make many tool rounds with nobody
and with N followers, in turn, and prints rounds per second, events that the followers are told per
second, and what the process that serves them needs of connections and memory: a process with an
engine, or an API with a stream for each. Followers take processor time that a machine of few cores
has not twice; whether they cost a run more than that is seen of others that stand still while it
goes on, and are told all of it afterwards. It ends with an error where a follower missed the end of
a run, or where a process takes more connections for more followers.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from bench.agents import AGENT, Answer, agent_tree, at_work, calling, published
from bench.contenders import HERE, NAME
from bench.following import CAUGHT_UP, CONNECTED
from bench.measure import Figure, alternate, machine, server, table
from bench.needs import connections, memory
from colony.engine import Engine
from colony.testing.claims import block_until, eventually
from colony.testing.fleet import Fleet

# One to ask and one to listen, however many follow.
CONNECTIONS: Final = 2
TEXT: Final = "Let me look at what there is, and then at what comes of it. " * 4
PATIENCE_S: Final = 600.0
WARM_UP: Final = 2


@dataclass(frozen=True)
class Found:
    """What became of a run with followers.

    `idle` and `most` are bytes of each follower: before the run began, and at most.
    """

    speed: float
    delivered: float
    dropped: int
    connections: int
    idle: int
    most: int


@dataclass
class Bench:
    """An agent that makes so many rounds in a run, and what was found of its followers."""

    fleet: Fleet
    rounds: int
    followers: int
    http: bool = False
    found: list[Found] = field(default_factory=list)

    def alone(self) -> float:
        """Rounds per second of a run that nobody follows."""
        return asyncio.run(self._alone())

    def followed(self) -> float:
        """Rounds per second of a run with all followers."""
        self.found.append(asyncio.run(self._followed()))
        return self.found[-1].speed

    def followed_later(self) -> float:
        """Rounds per second of a run whose followers stand still until it has ended."""
        return asyncio.run(self._followed(frozen=True)).speed

    async def _alone(self) -> float:
        async with await Engine.connect(self.fleet.url, colony=NAME) as engine:
            return await self._run(engine, (await engine.create_session(AGENT)).id)

    async def _followed(self, *, frozen: bool = False) -> Found:
        async with await Engine.connect(self.fleet.url, colony=NAME) as engine:
            session_id = (await engine.create_session(AGENT)).id
            with self._following(session_id) as (following, serving):
                before = memory(serving)
                _expect(following, CAUGHT_UP)
                idle, held = memory(serving), connections(serving, _port(self.fleet.url))
                with _frozen(serving) if frozen else nullcontext():
                    speed = await self._run(engine, session_id)
                heard = json.loads(_line(following))
                most = memory(serving, "VmHWM")
        if heard["results"] != self.followers:
            raise RuntimeError(f"{heard['results']} of {self.followers} were told the result")
        return Found(
            speed=speed,
            delivered=heard["events"] / heard["seconds"],
            dropped=heard["dropped"],
            connections=held,
            idle=(idle - before) // self.followers,
            most=(most - before) // self.followers,
        )

    async def _run(self, engine: Engine, session_id: str) -> float:
        run = await engine.run(session_id, "Go.")

        async def ended() -> bool:
            return not (await engine.session(session_id)).live

        await eventually(ended, "the run has ended", patience_s=PATIENCE_S)
        frames = engine.follow(session_id, run_id=run.id, follow=False)
        events = [frame.event async for frame in frames if frame.event is not None]
        if events[-1].payload["stop"] != "end_turn":
            raise RuntimeError(f"the run stopped with {events[-1].payload}")
        return self.rounds / ((events[-1].at - events[0].at) / 1000)

    @contextmanager
    def _following(self, session_id: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
        """The process of the followers, which is connected, and that which serves them."""
        api = self.fleet.api(environment={"COLONY_LOG_LEVEL": "info"}) if self.http else None
        if api is not None:
            block_until(lambda: api.events("listening"), "the API listens")
        place = self.fleet.url if api is None else api.address
        following = subprocess.Popen(
            [sys.executable, "-m", "bench.following", place, session_id, str(self.followers)],
            cwd=HERE.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            _expect(following, CONNECTED)
            yield following, following.pid if api is None else api.pid
        finally:
            following.communicate()
            if api is not None:
                api.kill()


def script(rounds: int) -> list[Answer]:
    """A model that says something and calls two tools, so often, and answers then."""
    return [*(calling(n, "look", calls=2, text=TEXT) for n in range(rounds)), {"text": TEXT}]


def measure(
    url: str, *, followers: int, rounds: int, workers: int, runs: int, http: bool = False
) -> tuple[list[Figure], list[Found]]:
    """Rounds per second with nobody and with all followers, and what was found of these."""
    asyncio.run(_publish(url, rounds))
    with at_work(url, workers=workers) as fleet:
        bench = Bench(fleet, rounds, followers, http)
        for _ in range(WARM_UP):
            bench.alone()
        figures = alternate(
            runs,
            (Figure("0 followers", "rounds/s"), bench.alone),
            (Figure(f"{followers} followers", "rounds/s"), bench.followed),
            (Figure(f"{followers} that stand still", "rounds/s"), bench.followed_later),
        )
    return figures, bench.found


async def _publish(url: str, rounds: int) -> None:
    async with published(url, agent_tree(script(rounds))):
        pass


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the followers have ended")
    return line.strip()


def _expect(process: "subprocess.Popen[str]", line: str) -> None:
    found = _line(process)
    if found != line:
        raise RuntimeError(f"the followers say {found!r}")


def _port(url: str) -> int:
    return urlsplit(url).port or 6379


def _costs(found: list[Found]) -> str:
    rows: dict[str, list[float]] = {
        "events told, per second": [each.delivered for each in found],
        "followers dropped, and taken up again": [each.dropped for each in found],
        "Redis connections of their process": [each.connections for each in found],
        "KiB of each follower, before the run": [each.idle / 1024 for each in found],
        "KiB of each follower, at most": [each.most / 1024 for each in found],
    }
    told = (f"| {name} | {statistics.median(values):,.0f} |" for name, values in rows.items())
    return "\n".join(["| followers | median |\n|---|---|", *told])


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.followers", description=__doc__)
    parser.add_argument("--followers", type=int, default=500, metavar="N")
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="of each run")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of each contender")
    parser.add_argument("--http", action="store_true", help="follow over streams of an API")
    given = parser.parse_args()
    print(f"# {machine()}, {given.workers} workers\n")
    with server() as redis:
        figures, found = measure(redis.url, **vars(given))
    print(f"\n{table(figures, beside=figures[0].name)}\n\n{_costs(found)}")
    if any(each.connections > CONNECTIONS for each in found):
        sys.exit("a process takes more connections for more followers")


if __name__ == "__main__":
    main()
