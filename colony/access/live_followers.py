"""Live followers: one subscription for all who follow a trace in this process, while any does."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import JsonValue

from colony.errors import ColonyError
from colony.keys import Keys
from colony.live import LiveEvent, subscribed
from colony.log import Outage, get_logger

# What a follower does not take in time is dropped; offsets show what is missing.
BUFFER: Final = 512
RETRY_S: Final = 1.0
# A server that may not be listened to keeps nobody from anything.
LISTEN_S: Final = 5.0

log = get_logger("colony.access.live")


@dataclass(slots=True, eq=False)
class LiveFollower:
    """What one follower of a trace has not taken yet, no text of it twice."""

    trace_id: str
    buffer: deque[LiveEvent] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _had: dict[tuple[str, str], int] = field(default_factory=dict)

    def push(self, event: LiveEvent) -> None:
        """Take in an event, without what was told before; a follower that is too slow loses it."""
        if event.trace_id != self.trace_id or len(self.buffer) >= BUFFER:
            return
        unheard = self._unheard(event)
        if unheard is not None:
            self.buffer.append(unheard)
            self.changed.set()

    def _unheard(self, event: LiveEvent) -> LiveEvent | None:
        # A handle that is repeated begins to tell from the start.
        text, offset = event.facts.get("text"), event.facts.get("offset")
        if not isinstance(text, str) or not isinstance(offset, int):
            return event
        said = (str(event.facts.get("message_id")), event.kind)
        had, end = self._had.get(said, 0), offset + len(text)
        if end <= had:
            return None
        self._had[said] = end
        if offset >= had:
            return event
        left: dict[str, JsonValue] = {"text": text[had - offset :], "offset": had}
        return replace(event, facts={**event.facts, **left})


class LiveFollowers:
    """Those who follow traces of one partition, by what cells tell of them."""

    def __init__(self, url: str, keys: Keys) -> None:
        self._url = url
        self._channel = keys.live()
        self._followers: set[LiveFollower] = set()
        self._hearing: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()

    @contextmanager
    def following(self, trace_id: str) -> Iterator[LiveFollower]:
        """A follower of a trace, as long as the block lasts; the server is heard from about now."""
        follower = LiveFollower(trace_id)
        self._followers.add(follower)
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.create_task(self._hear(), name="live")
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers and self._hearing is not None:
                self._hearing.cancel()

    async def listening(self) -> None:
        """From now on everything is heard that is told to those who follow; waits a moment at most
        for the server to listen."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_S):
                await self._heard.wait()

    async def close(self) -> None:
        """Nothing is heard any more."""
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)

    async def _hear(self) -> None:
        while True:
            try:
                async with aclosing(subscribed(self._url, self._channel)) as messages:
                    async for message in messages:
                        self._heard.set()
                        self._spread(message)
            except ColonyError as error:
                Outage.report(log, error)
            finally:
                self._heard.clear()
            await asyncio.sleep(RETRY_S)

    def _spread(self, message: bytes) -> None:
        event = LiveEvent.parse(message)
        if event is not None:
            for follower in tuple(self._followers):
                follower.push(event)
