"""Events: what whoever follows a run is told, in order.

A durable event is written with the step that caused it, and numbered; a live one is only told. The
payload is JSON text from the step that made it to whoever reads it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import msgpack
from pydantic import JsonValue

EventKind = Literal[
    "session.init",
    "session.title",
    "model.retry",
    "recover_notice",
    "user_prompt",
    "steer",
    "turn.start",
    "message.delta",
    "reasoning.delta",
    "turn.end",
    "tool.call",
    "tool.progress",
    "tool.result.available",
    "tool.result",
    "permission.ask",
    "permission.expired",
    "permission.retract",
    "approval",
    "hook",
    "compaction",
    "compaction.archive",
    "no_progress",
    "result",
]

# How much of a text one event holds, in bytes.
CHUNK_BYTES: Final = 1 << 20

_NO_ID: Final = b""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    `id` is its place in the log of its session, and `seq` its number in the run, from 1; a live
    event has neither. `at` is the millisecond since the epoch at which it was written; 0 of a live
    one. `turn` counts model calls from 0; it is -1 before the first.
    """

    run_id: str
    kind: EventKind
    turn: int
    payload: Mapping[str, JsonValue]
    seq: int = 0
    id: str | None = None

    @property
    def durable(self) -> bool:
        """Whether it is in the log."""
        return self.id is not None

    @property
    def at(self) -> int:
        """The millisecond since the epoch at which it was written; 0 of a live event."""
        return int(self.id.partition("-")[0]) if self.id else 0

    def to_json(self) -> dict[str, JsonValue]:
        """The event as a client is given it."""
        told: dict[str, JsonValue] = {"type": self.kind, "run_id": self.run_id, "turn": self.turn}
        if self.durable:
            told |= {"seq": self.seq, "at": self.at}
        return {**self.payload, **told}

    @classmethod
    def logged(cls, entry: bytes, fields: Sequence[bytes]) -> Self:
        """The event that an entry of the log is."""
        found = dict(zip(fields[::2], fields[1::2], strict=True))
        return cls(
            run_id=found[b"run"].decode(),
            kind=found[b"kind"].decode(),  # type: ignore[arg-type]
            turn=int(found[b"turn"]),
            payload=json.loads(found[b"payload"]),
            seq=int(found[b"seq"]),
            id=entry.decode(),
        )

    @classmethod
    def told(cls, message: bytes) -> Self:
        """The event that a message of the session's channel is."""
        entry, run, seq, kind, turn, payload = msgpack.unpackb(message, raw=True)
        return cls(
            run_id=run.decode(),
            kind=kind.decode(),
            turn=int(turn),
            payload=json.loads(payload),
            seq=int(seq),
            id=entry.decode() if entry != _NO_ID else None,
        )


def place_of(entry_id: str) -> tuple[int, int]:
    """An id of the log as something that can be compared."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


def live_message(
    run_id: str, kind: EventKind, turn: int, payload: Mapping[str, JsonValue]
) -> bytes:
    """A live event as it is published on the channel of its session."""
    told: bytes = msgpack.packb([_NO_ID, run_id, "0", kind, str(turn), json.dumps(payload)])
    return told


def chunks_of(text: str) -> list[str]:
    """A text in pieces of at most a mebibyte each."""
    pieces: list[str] = []
    data = text.encode(errors="replace")
    while data:
        cut = data[:CHUNK_BYTES].decode(errors="ignore")
        pieces.append(cut)
        data = data[len(cut.encode()) :]
    return pieces
