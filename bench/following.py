"""Following: the process of those who follow a session, and what they were told of its next run.

It says when it is connected, when all of them have caught up, and, once the run has ended for every
one, what they heard; then it waits until nobody listens to it any more.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Final

import httpx

from bench.contenders import NAME
from colony.access.run_follower import RunFollower
from colony.engine import Engine
from colony.errors import FollowerLagging

CONNECTED: Final = "connected"
CAUGHT_UP: Final = "caught up"
# What a follower is told that is no event of a run, as streams over HTTP name it.
MARK: Final = "live"
DROPPED: Final = "error"


@dataclass
class Heard:
    """What all followers together were told, how many seconds that took, and how often one of them
    was dropped because it was too slow, and went on where it was."""

    events: int = 0
    results: int = 0
    dropped: int = 0
    seconds: float = 0.0


async def follow(url: str, session_id: str, followers: int) -> Heard:
    """So many followers over the one engine of this process."""
    async with await Engine.connect(url, colony=NAME) as engine:
        say(CONNECTED)

        async def told() -> AsyncGenerator[str]:
            follower = RunFollower(session_id)
            while True:
                try:
                    async with aclosing(engine.feed.go_on(follower)) as frames:
                        async for frame in frames:
                            yield MARK if frame.event is None else frame.event.kind
                except FollowerLagging:
                    yield DROPPED

        return await _all_told([told() for _ in range(followers)])


async def follow_over_http(origin: str, session_id: str, followers: int) -> Heard:
    """So many followers, each over a stream of its own."""
    limits = httpx.Limits(max_connections=followers)
    async with httpx.AsyncClient(base_url=origin, timeout=None, limits=limits) as http:
        say(CONNECTED)

        async def told() -> AsyncGenerator[str]:
            path, seen = f"/v1/sessions/{session_id}/events", dict[str, str]()
            while True:
                async with http.stream("GET", path, headers=seen) as response:
                    response.raise_for_status()
                    named = ""
                    async for line in response.aiter_lines():
                        field, _, value = line.partition(": ")
                        if field == "id":
                            seen["Last-Event-ID"] = value
                        elif field == "event":
                            named = value
                        elif field == "data":
                            yield named or str(json.loads(value)["type"])
                            named = ""

        return await _all_told([told() for _ in range(followers)])


async def _all_told(streams: list[AsyncGenerator[str]]) -> Heard:
    """What is told until every stream has told a result; says so when all have caught up."""
    heard, behind, begun = Heard(), len(streams), 0.0

    async def hear(stream: AsyncGenerator[str]) -> None:
        nonlocal behind, begun
        async with aclosing(stream):
            async for kind in stream:
                if kind == MARK:
                    behind -= 1
                    if not behind:
                        say(CAUGHT_UP)
                elif kind == DROPPED:
                    heard.dropped += 1
                else:
                    begun = begun or time.perf_counter()
                    heard.events += 1
                if kind == "result":
                    heard.results += 1
                    return

    await asyncio.gather(*map(hear, streams))
    heard.seconds = time.perf_counter() - begun
    return heard


def say(line: str) -> None:
    """A line for whoever started this process."""
    print(line, flush=True)


def main() -> None:
    """Follow, and say what was heard."""
    parser = argparse.ArgumentParser(prog="python -m bench.following", description=__doc__)
    parser.add_argument("place", help="the URL of the server, or of an API")
    parser.add_argument("session_id")
    parser.add_argument("followers", type=int)
    given = parser.parse_args()
    following = follow_over_http if given.place.startswith("http") else follow
    heard = asyncio.run(following(given.place, given.session_id, given.followers))
    say(json.dumps(asdict(heard)))
    sys.stdin.read()


if __name__ == "__main__":
    main()
