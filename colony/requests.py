"""Requests: what models were sent for a trace, byte for byte, kept as long as the trace.

A thread grows by a few messages from one request to the next. So a request is kept as the list of
its pieces, cut at the messages, and a piece that several requests have is kept once.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgpack
from pydantic import JsonValue

from colony.envelope import Envelope
from colony.errors import RequestNotFound
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import Argument, bind

MESSAGES: Final = "messages"
# Before the name of a request it is the name of the count of its repeats.
COUNT: Final = b"#"

_DIGEST_BYTES: Final = 16
_SPACE = re.compile(r"[ \t\n\r]*")
_read = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request and who sent it. `sent` says how often the same bytes went out for its envelope.

    `at` is the millisecond of the first time, `attempt` the number of that call for its envelope.
    `iteration` and `turn_id` are those of the envelope; `turn_id` is None where it names none.
    """

    trace_id: str
    envelope_id: str
    cell: str
    turn_id: str | None
    iteration: int
    attempt: int
    provider: str
    model: str
    size: int
    number: int
    at: int
    sent: int
    pieces: tuple[bytes, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """The request without its bytes."""
        return {
            "trace_id": self.trace_id,
            "envelope_id": self.envelope_id,
            "cell": self.cell,
            "turn_id": self.turn_id,
            "iter": self.iteration,
            "attempt": self.attempt,
            "sent": self.sent,
            "provider": self.provider,
            "model": self.model,
            "size": self.size,
            "at": self.at,
        }


class Requests:
    """The requests of the traces of one partition."""

    def __init__(self, link: Link, keys: Keys, *, server: str | None = None) -> None:
        self._link = link
        self._keys = keys
        self._server = server

    async def record(
        self, body: bytes, *, envelope: Envelope, cell: str, facts: Mapping[str, JsonValue]
    ) -> bool:
        """Keep a request with the trace of the envelope; False where the trace takes no more.

        The same bytes for the same envelope are kept once, and counted.
        """
        pieces = [(_digest(piece), piece) for piece in cut(body)]
        told: dict[str, Any] = {
            **facts,
            "envelope": envelope.id,
            "cell": cell,
            "turn_id": _turn_id(envelope),
            "iter": _iteration(envelope),
            "size": len(body),
            "pieces": [digest for digest, _ in pieces],
        }
        given: list[Argument] = [part for pair in pieces for part in pair]
        answer = await self._link.run(
            bind(
                "record_request",
                trace=self._keys.trace(envelope.trace_id),
                requests=self._keys.requests(envelope.trace_id),
                said=self._keys.said(envelope.trace_id),
                name=f"{envelope.id}:{_digest(body).hex()}",
                facts=bytes(msgpack.packb(told, unicode_errors="replace")),
                pieces=given,
            ),
            server=self._server,
        )
        return bool(answer[0] != b"fenced")

    async def of_trace(self, trace_id: str) -> list[SentRequest]:
        """The requests of a trace in the order in which they were first sent."""
        flat = await self._link.command("HGETALL", self._keys.requests(trace_id))
        kept: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
        found = [
            _sent(trace_id, value, times=1 + int(kept.get(COUNT + name, b"0")))
            for name, value in kept.items()
            if not name.startswith(COUNT)
        ]
        return sorted(found, key=lambda request: request.number)

    async def body(self, request: SentRequest) -> bytes:
        """The bytes that were sent; raises RequestNotFound where they went since."""
        key = self._keys.said(request.trace_id)
        pieces = await self._link.command("HMGET", key, *request.pieces)
        if None in pieces:
            question = request.turn_id or request.trace_id
            raise RequestNotFound(question=question, detail="its trace is not kept any more")
        return b"".join(pieces)


def cut(body: bytes) -> list[bytes]:
    """The pieces of a body, which put together are the body: what comes before its messages, each
    message, and what comes after. A body without messages is one piece."""
    try:
        text = body.decode()
        bounds = [0, *_bounds(text)]
    except (ValueError, IndexError, RecursionError):
        return [body]
    # The end of the last message is not the end of the body: that is an object.
    pieces = [text[a:b].encode() for a, b in zip(bounds, [*bounds[1:], len(text)], strict=True)]
    return [piece for piece in pieces if piece]


def _bounds(text: str) -> Iterator[int]:
    """Where the first message begins and where each ends; a comma belongs to the message behind."""
    at = _expect(text, _next(text, 0), "{")
    while True:
        key, at = _read(text, at)
        at = _expect(text, _next(text, at), ":")
        if key == MESSAGES:
            break
        _, at = _read(text, at)
        at = _expect(text, _next(text, at), ",")
    at = _expect(text, at, "[")
    yield at
    while text[at] != "]":
        _, at = _read(text, at)
        yield at
        at = _next(text, at)
        if text[at] != "]":
            at = _expect(text, at, ",")


def _next(text: str, at: int) -> int:
    """The place of the next character that is no space."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _expect(text: str, at: int, character: str) -> int:
    if text[at] != character:
        raise ValueError(f"{character} is expected at {at}")
    return _next(text, at + 1)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _sent(trace_id: str, value: bytes, *, times: int) -> SentRequest:
    number, at, packed = value.split(b" ", 2)
    told: dict[str, Any] = msgpack.unpackb(packed)
    return SentRequest(
        trace_id=trace_id,
        envelope_id=told["envelope"],
        cell=told["cell"],
        turn_id=told["turn_id"],
        iteration=told["iter"],
        attempt=told["attempt"],
        provider=told["provider"],
        model=told["model"],
        size=told["size"],
        number=int(number),
        at=int(at),
        sent=times,
        pieces=tuple(told["pieces"]),
    )


def _turn_id(envelope: Envelope) -> str | None:
    found = envelope.context.get("turn_id")
    return found if isinstance(found, str) and found else None


def _iteration(envelope: Envelope) -> int:
    """The number of the round, from 0; a tree may count in numbers or in their texts."""
    found = envelope.context.get("iter", 0)
    try:
        return int(found) if isinstance(found, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0
