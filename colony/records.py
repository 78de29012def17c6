"""Hop records: what the log of a trace keeps of one routed envelope."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import JsonValue

from colony.codec import blob_reference, pack, unpack
from colony.envelope import Head
from colony.errors import EnvelopeError
from colony.redaction import REDACTED, is_secret
from colony.routing import Leg

EXCERPT_CHARS: Final = 200
EXCERPT_MAX_BYTES: Final = 64 * 1024

Bodies = Literal["none", "excerpt", "full"]


@dataclass(frozen=True, slots=True)
class HopRecord:
    """One routed envelope: where from, where to, by which edge, with which headers and ttl left.

    `entry` is its place in the log of its trace; `condition` is that of the edge.
    """

    entry: str
    head: Head
    condition: str | None
    body: JsonValue

    @property
    def at(self) -> int:
        """The millisecond the record was written in."""
        return int(self.entry.partition("-")[0])

    def to_json(self) -> dict[str, JsonValue]:
        """The record as the log of messages shows it."""
        head = self.head
        return {
            "id": head.id,
            "trace_id": head.trace_id,
            "parent_message_id": head.parent_message_id,
            "correlation_id": head.correlation_id,
            "ttl": head.ttl,
            "from_path": head.sender,
            "to_path": head.target,
            "reply_to": head.reply_to,
            "headers": {"context": head.context, "hop": head.hop},
            "condition": self.condition,
            "body_kind": self.body_kind,
            "body_payload": self.body,
            "created_at": head.created_at,
            "at": self.at,
        }

    @property
    def body_kind(self) -> str:
        """`blob` where the body travelled as a reference, `inline` otherwise."""
        return "inline" if self.blob_id is None else "blob"

    @property
    def blob_id(self) -> str | None:
        """The blob that the body travelled as a reference to."""
        found = self.body.get("blob_id") if isinstance(self.body, dict) else None
        return found if isinstance(found, str) else None


def write_record(leg: Leg, body: JsonValue) -> bytes:
    """The hop record of a leg, as the log keeps it."""
    condition = leg.edge.spec.condition if leg.edge else None
    # Not by leaving out defaults: that of `created_at` is the clock.
    return pack([leg.head.model_dump(mode="json", exclude_none=True), condition, body])


def read_record(entry: bytes, data: bytes) -> HopRecord:
    """The hop record that `data` holds, written as the stream entry `entry`."""
    head, condition, body = unpack(data)
    return HopRecord(entry.decode(), Head.model_validate(head), condition, body)


def excerpt(body: bytes, bodies: Bodies) -> JsonValue:
    """What a record keeps of a body: nothing, a redacted excerpt, or the redacted whole.

    Of a body behind a reference, or above 64 KiB, only its id or size is kept as an excerpt.
    """
    if bodies == "none":
        return None
    blob_id = blob_reference(body)
    if blob_id is not None:
        return {"blob_id": blob_id}
    if bodies == "excerpt" and len(body) > EXCERPT_MAX_BYTES:
        return {"size_bytes": len(body)}
    try:
        value = unpack(body)
    except EnvelopeError:
        return None
    return _redact(value, EXCERPT_CHARS if bodies == "excerpt" else None)


def beginnings(content: bytes) -> JsonValue:
    """A body, redacted, each of its texts an excerpt, however large the whole is."""
    try:
        return _redact(unpack(content), EXCERPT_CHARS)
    except EnvelopeError:
        return None


def _redact(value: Any, chars: int | None) -> JsonValue:
    if isinstance(value, Mapping):
        return {k: REDACTED if is_secret(k) else _redact(v, chars) for k, v in value.items()}
    if isinstance(value, list):
        return [_redact(item, chars) for item in value]
    if isinstance(value, str):
        return value if chars is None or len(value) <= chars else value[:chars] + "…"
    return value if isinstance(value, (bool, int, float)) else None
