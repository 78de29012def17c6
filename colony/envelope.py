"""Envelopes: addressed units on their way, what cells return, what nobody will handle."""

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pydantic import Field, JsonValue

from colony.body import Body, Entry, Frozen

DEFAULT_TTL = 64
MAX_TTL = 2**32 - 1
EXTERNAL = "@external"

Headers = dict[str, JsonValue]

# Every derived id lives below this namespace, so colony's ids never meet somebody else's uuid5.
_NAMESPACE = uuid.UUID("6f0f1c1e-6c9f-5a53-9c5e-1d7f3a2b8c40")

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Head(Frozen):
    """Everything of an envelope but its body: all that routing may know.

    `target` is absent on an emission that edges have yet to address. `sender` is the path it came
    from, `@external` at ingress. `context` rides until an edge changes it; `hop` lives for one hop.
    `created_at` is in milliseconds since the epoch.
    """

    id: str
    trace_id: str
    target: str | None
    ttl: int = Field(ge=0, le=MAX_TTL)
    parent_message_id: str | None = None
    correlation_id: str | None = None
    sender: str = EXTERNAL
    reply_to: str | None = None
    context: Headers = Field(default_factory=dict)
    hop: Headers = Field(default_factory=dict)
    created_at: int = Field(default_factory=lambda: time.time_ns() // 1_000_000)
    session: str | None = None


class Envelope(Head):
    """A head with its body: what a cell is given."""

    body: Body


class Emission(Frozen):
    """What a cell returns: hop and body, no address; the edges decide where it goes."""

    hop: Headers = Field(default_factory=dict)
    body: Body

    @classmethod
    def of(cls, *entries: Entry, **hop: JsonValue) -> Self:
        """An emission of these entries."""
        return cls(hop=hop, body=Body.of(*entries))

    @classmethod
    def say(cls, text: str, **hop: JsonValue) -> Self:
        """An emission of one assistant text."""
        return cls.of(Entry.say("assistant", text), **hop)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An envelope nothing will handle: who sent it where, and why it died.

    `head` is the envelope with the ttl it died with, absent where its bytes could not be read.
    `edges` lists the evaluated edges of a `no_route`; `attempts` tells how often it was handled.
    """

    code: str
    detail: str
    sender: str
    original_target: str | None
    resolved_target: str | None
    head: Head | None
    body: bytes
    edges: tuple[Mapping[str, JsonValue], ...] = ()
    attempts: int = 1


def new_id() -> str:
    """A fresh uuid7: sortable by the millisecond it was made in."""
    stamp = time.time_ns() // 1_000_000
    value = (stamp & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def is_id(text: str) -> bool:
    """Whether a text can be an id that was made here; what cannot names nothing."""
    return _ID.fullmatch(text) is not None


def derived_id(*parts: str | int) -> str:
    """The uuid5 of `parts`: the same parts give the same id on every host, at every repetition."""
    # Spelled out, because every leg of every envelope gets one: uuid5 takes twice as long.
    name = _NAMESPACE.bytes + json.dumps(parts).encode()
    text = hashlib.sha1(name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def session_of(context: Headers) -> str:
    """The session that a context names; empty where it names none."""
    session = context.get("session_id")
    return session if isinstance(session, str) else ""


def turn_of(context: Headers) -> str | None:
    """The question that a context names, if it names one."""
    turn_id = context.get("turn_id")
    return turn_id if isinstance(turn_id, str) and turn_id else None


def iteration_of(context: Headers) -> int:
    """The number of the round, from 0; a tree may count in numbers or in their texts."""
    found = context.get("iter")
    try:
        return int(found) if isinstance(found, (int, float, str)) else 0
    except (ValueError, OverflowError):
        # Anybody may have set it, to anything.
        return 0


def digest(value: JsonValue) -> str:
    """A short digest of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
