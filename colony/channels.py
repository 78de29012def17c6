"""Channels: one connection of a process that hears every channel somebody here listens to.

Whoever listens is called with each message, and told when it begins to hear and when it hears again
after a loss: what was said in between it has to find out elsewhere.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from colony.errors import ServerUnavailable
from colony.live import CONNECT_TIMEOUT_S, SILENCE_S, connection_to, replies
from colony.log import Outage, get_logger
from colony.sentinel import Sentinels, names_sentinels

RETRY_S: Final = 0.5

# Called with a message, or with nothing each time the channel begins to be heard.
Listener = Callable[[bytes], None]
LISTENING: Final = b""

log = get_logger("colony.channels")


class Channels:
    """The channels of a server that somebody in this process listens to."""

    def __init__(self, url: str, *, silence_s: float = SILENCE_S) -> None:
        self._url = url
        self._silence_s = silence_s
        self._listeners: dict[str, Listener] = {}
        self._connection: AbstractConnection | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def connections(self) -> int:
        """How many connections it holds."""
        return int(self._connection is not None)

    async def listen(self, channel: str, listener: Listener) -> None:
        """Call `listener`, the only one of the channel, with what is said there from then on."""
        self._listeners[channel] = listener
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.create_task(self._hear_for_ever(), name="channels")
        else:
            await self._say("SUBSCRIBE", channel)

    async def leave(self, channel: str) -> None:
        """Call the listener of a channel no more."""
        self._listeners.pop(channel, None)
        await self._say("UNSUBSCRIBE", channel)

    async def close(self) -> None:
        """Nobody is called any more, and nothing is held open."""
        self._closed = True
        self._listeners.clear()
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)

    async def _say(self, *words: str) -> None:
        connection = self._connection
        if connection is not None:
            # What cannot be said now is said when the connection is made again.
            with suppress(RedisError, OSError):
                await connection.send_command(*words)

    async def _hear_for_ever(self) -> None:
        while not self._closed and self._listeners:
            try:
                await self._hear()
            except (ServerUnavailable, TimeoutError, RedisError, OSError) as error:
                Outage.report(log, ServerUnavailable(detail=str(error) or "no answer"))
                await asyncio.sleep(RETRY_S)

    async def _hear(self) -> None:
        sentinels = Sentinels(self._url) if names_sentinels(self._url) else None
        try:
            place = self._url if sentinels is None else await sentinels.locate()
            connection = connection_to(place)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.connect_check_health(
                    check_health=False, retry_socket_connect=False
                )
                self._connection = connection
                if not self._listeners:
                    # Whoever wanted to hear something has left meanwhile.
                    return
                await connection.send_command("SUBSCRIBE", *self._listeners)
            async for kind, channel, *rest in replies(connection, self._silence_s):
                if kind == b"message":
                    self._tell(channel.decode(), rest[0])
                elif kind == b"subscribe":
                    self._tell(channel.decode(), LISTENING)
                elif sentinels is not None and await sentinels.locate() != place:
                    raise ServerUnavailable(detail="the sentinels name another server")
                if not self._listeners:
                    return
        finally:
            connection_lost, self._connection = self._connection, None
            if connection_lost is not None:
                await connection_lost.disconnect(nowait=True)
            if sentinels is not None:
                await sentinels.close()

    def _tell(self, channel: str, message: bytes) -> None:
        listener = self._listeners.get(channel)
        if listener is not None:
            listener(message)
