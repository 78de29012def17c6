"""Endings: whoever waits for a trace is told soon after its end."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from colony.access.endings import Endings
from colony.body import Body, Entry
from colony.keys import Keys
from colony.link import Link
from colony.traces import Traces

KEYS = Keys("waited")
BLOCKED_S = 0.5


class Blocked(Link):
    """A link whose first command finds the event loop blocked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.blocked = asyncio.Event()

    async def command(self, *parts: Any, server: str | None = None) -> Any:
        answer = await super().command(*parts, server=server)
        if not self.blocked.is_set():
            time.sleep(BLOCKED_S)  # noqa: ASYNC251  the loop is to be blocked
            self.blocked.set()
        return answer


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Blocked]:
    link = Blocked(redis_url)
    yield link
    await link.close()


async def test_a_loop_that_was_blocked_during_a_poll_does_not_delay_the_next(
    link: Blocked, redis_url: str
) -> None:
    other, endings = Link(redis_url), Endings(link, KEYS)
    traces = Traces(other, KEYS)
    trace_id = (await traces.birth("/x", Body.of(Entry.say("user", "x")), ttl=9)).trace_id
    waiting = asyncio.create_task(endings.wait(trace_id, 10))
    await link.blocked.wait()
    await traces.end(trace_id, "cancelled", "cancelled")
    ended_at = time.monotonic()

    assert await waiting
    assert time.monotonic() - ended_at < BLOCKED_S
    await endings.close()
    await other.close()
