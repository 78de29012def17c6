"""Contenders: colony and its peers, each as a function that runs once and gives its figure."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import server
from colony.body import Body, Entry
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.claims import eventually
from colony.topology.load import load
from colony.topology.model import TopologySpec
from colony.traces import Traces

HERE = Path(__file__).parent
NAME = "bench"
WARM_UP = 20


def colony_rounds(tree: str, *, questions: int, rounds: int, workers: int = 1) -> float:
    """Rounds per second: `questions` asked at once, each of `rounds` rounds of two no-op tools.

    Durable, joined once, the thread kept; a round is a model call, two tools and the join.
    """
    with running(tree_of(tree), workers=workers) as url:
        return questions * rounds / asyncio.run(load_seconds(url, "/prep", questions))


def colony_hops(*, chains: int, length: int, workers: int = 1) -> float:
    """Routed envelopes per second: `chains` at once, each passed on between two cells."""
    with running(tree_of("relay"), workers=workers) as url:
        return chains * length / asyncio.run(load_seconds(url, "/ping", chains))


def celery_chords(*, chords: int) -> float:
    """Chords of two no-op tasks per second: Celery, prefork with two processes."""
    with server() as redis:
        run = subprocess.run(
            [_peer("celery"), str(HERE / "peers" / "celery" / "chord.py"), str(chords)],
            env={**os.environ, "CHORD_REDIS_URL": redis.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
            timeout=300,
        )
        return float(run.stdout.split()[-1])


def _peer(name: str) -> str:
    """The Python of a peer's own environment, made where it is missing."""
    folder = HERE / "peers" / name
    python = folder / ".venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / ".venv")], check=True)
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "-r",
            str(folder / "requirements.txt"),
        ]
        subprocess.run(install, check=True)
    return str(python)


def tree_of(name: str) -> TopologySpec:
    """The benchmark tree called `name`."""
    return load(HERE / "trees" / name, environment={}).publishable()


@contextmanager
def running(spec: TopologySpec, *, workers: int) -> Iterator[str]:
    """A server, a router and workers, each a process as the command line runs it; the URL."""
    with server() as redis:
        asyncio.run(_publish(redis.url, spec))
        environment = {
            **os.environ,
            "COLONY_REDIS_URL": redis.url,
            "COLONY_NAME": NAME,
            "COLONY_LOG_LEVEL": "error",
            "PYTHONPATH": str(HERE.parent),
        }
        processes = [
            subprocess.Popen([sys.executable, "-m", "colony.cli", role], env=environment)
            for role in ("router", *(["worker"] * workers))
        ]
        try:
            yield redis.url
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


async def load_seconds(url: str, entry: str, messages: int) -> float:
    """Seconds from the first of `messages` to the end of the last trace, processes warm."""
    link, keys = Link(url), Keys(NAME)
    try:
        await send(link, keys, entry, WARM_UP)
        await until_ended(link, keys, WARM_UP)
        started = time.perf_counter()
        await send(link, keys, entry, messages)
        await until_ended(link, keys, WARM_UP + messages)
        seconds = time.perf_counter() - started
        if dead := int(await link.command("XLEN", keys.dead())):
            raise SystemExit(f"{dead} dead letters")
        return seconds
    finally:
        await link.close()


async def send(link: Link, keys: Keys, entry: str, count: int) -> list[str]:
    """Admit `count` messages at once; returns their traces."""
    traces, body = Traces(link, keys), Body.of(Entry.say("user", "go"))
    births = (traces.birth(entry, body, ttl=1_000_000) for _ in range(count))
    return [birth.trace_id for birth in await asyncio.gather(*births)]


async def until_ended(link: Link, keys: Keys, count: int, *, timeout_s: float = 600) -> None:
    """Wait until `count` traces have ended."""

    async def ended() -> bool:
        return int(await link.command("ZCARD", keys.ended_traces())) >= count

    await eventually(ended, f"{count} traces have ended", patience_s=timeout_s)


async def _publish(url: str, spec: TopologySpec) -> None:
    link = Link(url)
    await Publication(link, Keys(NAME)).publish(spec)
    await link.close()
