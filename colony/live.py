"""Live: what cells tell whoever follows a trace now, and nobody keeps.

It travels over a channel of the server, so it reaches every process that listens and none that
comes later.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import JsonValue
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import RedisError

from colony.errors import ServerUnavailable
from colony.sentinel import Sentinels, names_sentinels

CONNECT_TIMEOUT_S: Final = 5.0
# After so long without a word the server is asked whether it is there.
SILENCE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """One thing that a cell told of a trace."""

    trace_id: str
    cell: str
    kind: str
    facts: Mapping[str, JsonValue]

    def to_json(self) -> dict[str, JsonValue]:
        """The event as whoever follows is given it."""
        told = {"trace_id": self.trace_id, "cell": self.cell, "kind": self.kind}
        return {**self.facts, **told}

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """The event that a message is; None where it is none."""
        try:
            told = json.loads(text)
            trace_id, cell, kind = (str(told.pop(name)) for name in ("trace_id", "cell", "kind"))
        except (ValueError, KeyError, AttributeError, TypeError):
            return None
        return cls(trace_id, cell, kind, told)


async def subscribed(
    url: str, channel: str, *, silence_s: float = SILENCE_S
) -> AsyncGenerator[bytes]:
    """The messages of a channel from now on, over a connection of its own.

    The first one is empty and says that the server listens. Raises ServerUnavailable where the
    server is away, says nothing any more, or is not the one that sentinels name.
    """
    sentinels = Sentinels(url) if names_sentinels(url) else None
    connection: AbstractConnection | None = None
    try:
        place = url if sentinels is None else await sentinels.locate()
        connection = connection_to(place)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect_check_health(check_health=False, retry_socket_connect=False)
            await connection.send_command("SUBSCRIBE", channel)
        async for kind, *_, payload in replies(connection, silence_s):
            if kind == b"subscribe":
                yield b""
            elif kind == b"message":
                yield bytes(payload)
            elif sentinels is not None and await sentinels.locate() != place:
                raise ServerUnavailable(detail="the sentinels name another server")
    except (TimeoutError, RedisError, OSError) as error:
        raise ServerUnavailable(detail=str(error) or "no answer") from error
    finally:
        if connection is not None:
            await connection.disconnect(nowait=True)
        if sentinels is not None:
            await sentinels.close()


def connection_to(place: str) -> AbstractConnection:
    """A connection for messages to a server, not made yet."""
    options: dict[str, Any] = dict(parse_url(place))
    kind: type[AbstractConnection] = options.pop("connection_class", Connection)
    return kind(
        **options, socket_timeout=None, socket_connect_timeout=CONNECT_TIMEOUT_S, protocol=2
    )


async def replies(connection: AbstractConnection, silence_s: float) -> AsyncGenerator[list[Any]]:
    """What a connection that listens is told: the kind, and what belongs to it.

    Raises ServerUnavailable where the server says nothing any more, even when it is asked.
    """
    asked = False
    reading: asyncio.Task[Any] | None = None
    try:
        while True:
            # Not by a timeout: a read that is cancelled costs the connection.
            reading = reading or asyncio.create_task(_read(connection), name="live-read")
            done, _ = await asyncio.wait({reading}, timeout=silence_s)
            if done:
                told, reading, asked = reading.result(), None, False
                yield told
            elif asked:
                raise ServerUnavailable(detail="the server owes an answer and gives none")
            else:
                await connection.send_command("PING")
                asked = True
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _read(connection: AbstractConnection) -> Any:
    return await connection.read_response(disable_decoding=True)
