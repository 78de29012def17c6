"""Requests: what models were sent for a trace, byte for byte, kept as long as the trace.

A thread grows by a few messages from one request to the next. So the first request of a thread is
kept whole, and of each further one what the one before does not hold.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgpack
from pydantic import JsonValue

from colony.deltas import Part, applied, delta
from colony.envelope import Envelope, iteration_of, turn_of
from colony.errors import Fenced, RequestNotFound
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind

# Before the name of a request it is the name of the count of its repeats; before that of a thread,
# of its newest request.
COUNT: Final = b"#"
NEWEST: Final = b">"
RECENT_BYTES: Final = 16 * 1024 * 1024

_DIGEST_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request and who sent it. `sent` says how often the same bytes went out for its envelope.

    `at` is the millisecond of the first time, `attempt` the number of that call for its envelope.
    `iteration` and `turn_id` are those of the envelope; `turn_id` is None where it names none.
    """

    trace_id: str
    name: bytes
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


@dataclass(frozen=True, slots=True)
class Kept:
    """A request by its name; the body is None where what it builds on is gone."""

    name: bytes
    body: bytes | None


class Recent:
    """The newest requests of threads as this process knows them, up to a number of bytes.

    Only a saving: what is missing or outdated is read from the server.
    """

    def __init__(self, max_bytes: int = RECENT_BYTES) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[bytes, bytes]] = OrderedDict()
        self._left = max_bytes

    def of(self, trace_id: str, thread: str) -> Kept | None:
        """The newest request of a thread, if it is known."""
        found = self._kept.get((trace_id, thread))
        return None if found is None else Kept(*found)

    def put(self, trace_id: str, thread: str, *, name: bytes, body: bytes) -> None:
        """From here on this is the newest; what was put the longest ago makes room."""
        self._left += len(self._kept.pop((trace_id, thread), (b"", b""))[1])
        self._kept[trace_id, thread] = name, body
        self._left -= len(body)
        while self._left < 0:
            _, (_, gone) = self._kept.popitem(last=False)
            self._left += len(gone)


class Requests:
    """The requests of the traces of one partition."""

    def __init__(
        self, link: Link, keys: Keys, *, server: str | None = None, recent: Recent | None = None
    ) -> None:
        self._link = link
        self._keys = keys
        self._server = server
        self._recent = recent or Recent()

    async def record(
        self, body: bytes, *, envelope: Envelope, cell: str, facts: Mapping[str, JsonValue]
    ) -> None:
        """Keep a request with the trace of the envelope; raises Fenced where that takes no more.

        The same bytes for the same envelope are kept once, and counted.
        """
        trace_id, turn_id = envelope.trace_id, turn_of(envelope.context)
        # What one cell is sent for one question grows from round to round.
        thread = f"{cell} {turn_id or ''}"
        name = f"{envelope.id}:{sha256(body).hexdigest()[:_DIGEST_DIGITS]}".encode()
        told: dict[str, JsonValue] = {
            **facts,
            "envelope": envelope.id,
            "cell": cell,
            "turn_id": turn_id,
            "iter": iteration_of(envelope.context),
            "size": len(body),
        }
        before = self._recent.of(trace_id, thread)
        while True:
            call = bind(
                "record_request",
                trace=self._keys.trace(trace_id),
                requests=self._keys.requests(trace_id),
                name=name,
                facts=_packed(told, body, before),
                thread=thread.encode(errors="replace"),
                before=before.name if before else b"",
            )
            answer = await self._link.run(call, server=self._server)
            if answer[0] != b"behind":
                break
            # Another worker was sent the one before.
            before = await self._newest(trace_id, thread)
        if answer[0] == b"fenced":
            raise Fenced(trace_id=trace_id)
        if int(answer[1]) == 1:
            self._recent.put(trace_id, thread, name=name, body=body)

    async def _newest(self, trace_id: str, thread: str) -> Kept | None:
        kept = await self._all(trace_id)
        name = kept.get(NEWEST + thread.encode(errors="replace"))
        if name is None:
            return None
        try:
            return Kept(name, _restored(kept, name))
        except (ValueError, KeyError, TypeError):
            # Written by another version, or by a stranger: what comes now is kept whole.
            return Kept(name, None)

    async def _all(self, trace_id: str) -> dict[bytes, bytes]:
        key = self._keys.requests(trace_id)
        flat = await self._link.command("HGETALL", key, server=self._server)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    async def of_trace(self, trace_id: str) -> list[SentRequest]:
        """The requests of a trace in the order in which they were first sent."""
        kept = await self._all(trace_id)
        found = [
            _sent(trace_id, name, value, times=1 + int(kept.get(COUNT + name, b"0")))
            for name, value in kept.items()
            if not name.startswith((COUNT, NEWEST))
        ]
        return sorted(found, key=lambda request: request.number)

    async def body(self, request: SentRequest) -> bytes:
        """The bytes that were sent; raises RequestNotFound where they went since."""
        body = _restored(await self._all(request.trace_id), request.name)
        if body is None:
            question = request.turn_id or request.trace_id
            raise RequestNotFound(question=question, detail="its trace is not kept any more")
        return body


def _packed(told: Mapping[str, JsonValue], body: bytes, before: Kept | None) -> bytes:
    """Who sent a body, and what of it the one before does not hold."""
    base: bytes | None = None
    parts: list[Part] = [body]
    if before is not None and before.body is not None:
        base, parts = before.name, delta(before.body, body)
    facts = {**told, "base": base, "parts": parts}
    return bytes(msgpack.packb(facts, unicode_errors="replace"))


def _restored(kept: Mapping[bytes, bytes], name: bytes) -> bytes | None:
    """The body of a request: from the first of its thread on, each by its difference."""
    changes: list[list[Part]] = []
    base: bytes | None = name
    while base is not None:
        value = kept.get(base)
        if value is None:
            return None
        told = _told(value)[2]
        changes.append(told["parts"])
        base = told["base"]
    body = b""
    for parts in reversed(changes):
        body = applied(body, parts)
    return body


def _told(value: bytes) -> tuple[int, int, dict[str, Any]]:
    """The number of a request, its time, and who sent it."""
    number, at, packed = value.split(b" ", 2)
    return int(number), int(at), msgpack.unpackb(packed)


def _sent(trace_id: str, name: bytes, value: bytes, *, times: int) -> SentRequest:
    number, at, told = _told(value)
    return SentRequest(
        trace_id=trace_id,
        name=name,
        envelope_id=told["envelope"],
        cell=told["cell"],
        turn_id=told["turn_id"],
        iteration=told["iter"],
        attempt=told["attempt"],
        provider=told["provider"],
        model=told["model"],
        size=told["size"],
        number=number,
        at=at,
        sent=times,
    )
