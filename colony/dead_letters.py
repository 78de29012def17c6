"""Dead letters: what nobody will handle, kept until somebody replays or drops it."""

import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from colony.codec import decode_body, decode_head, encode_head, pack, unpack
from colony.envelope import DeadLetter, Head, new_id
from colony.errors import ColonyError, DeadLetterNotFound, EnvelopeError
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind

PAGE: Final = 1000
LETTER_KEEP_MS: Final = 30 * 24 * 60 * 60 * 1000

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Buried:
    """A dead letter as it lies on its stream. `died_at` is in milliseconds since the epoch."""

    id: str
    code: str
    trace_id: str
    died_at: int
    facts: Mapping[str, JsonValue]
    head: Head | None
    head_bytes: bytes
    body_bytes: bytes

    def to_json(self) -> dict[str, JsonValue]:
        """The letter as an operator reads it: the whole envelope, who, where, why and when."""
        return {
            "id": self.id,
            "error_code": self.code,
            "trace_id": self.trace_id,
            "message_id": self.head.id if self.head else None,
            "died_at": self.died_at,
            "created_at": self.head.created_at if self.head else None,
            "parent_message_id": self.head.parent_message_id if self.head else None,
            **self.facts,
            "message": self._message(),
        }

    def _message(self) -> JsonValue:
        if self.head is None:
            return {"head": self.head_bytes.hex(), "body": self.body_bytes.hex()}
        head: dict[str, JsonValue] = self.head.model_dump(mode="json")
        try:
            return {**head, "body": decode_body(self.body_bytes).to_json()}
        except ColonyError:
            return {**head, "body": self.body_bytes.hex()}


class DeadLetters:
    """The dead letters of one partition, newest last."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def count(self) -> int:
        """How many letters are kept."""
        return int(await self.link.command("XLEN", self.keys.dead()))

    async def list(
        self, *, code: str | None = None, since_ms: int = 0, limit: int = 100
    ) -> list[Buried]:
        """The letters that died at or after `since_ms`, oldest first."""
        found: list[Buried] = []
        start = str(since_ms)
        while len(found) < limit:
            page = await self.link.command("XRANGE", self.keys.dead(), start, "+", "COUNT", PAGE)
            letters = [_read(entry, fields) for entry, fields in page]
            found += [letter for letter in letters if code in (None, letter.code)]
            if len(page) < PAGE:
                break
            start = "(" + letters[-1].id
        return found[:limit]

    async def newest(
        self, *, code: str | None = None, before: str | None = None, limit: int = 100
    ) -> builtins.list[Buried]:
        """The letters that died before the one called `before`, newest first.

        Raises DeadLetterNotFound where `before` is no id of a letter.
        """
        if before is not None and not _ENTRY_ID.fullmatch(before):
            raise DeadLetterNotFound(letter_id=before)
        found: builtins.list[Buried] = []
        end = "+" if before is None else f"({before}"
        while len(found) < limit:
            page = await self.link.command("XREVRANGE", self.keys.dead(), end, "-", "COUNT", PAGE)
            letters = [_read(entry, fields) for entry, fields in page]
            found += [letter for letter in letters if code in (None, letter.code)]
            if len(page) < PAGE:
                break
            end = "(" + letters[-1].id
        return found[:limit]

    async def get(self, letter_id: str) -> Buried:
        """The letter; raises DeadLetterNotFound where there is none."""
        if not _ENTRY_ID.fullmatch(letter_id):
            raise DeadLetterNotFound(letter_id=letter_id)
        page = await self.link.command("XRANGE", self.keys.dead(), letter_id, letter_id)
        if not page:
            raise DeadLetterNotFound(letter_id=letter_id)
        return _read(*page[0])

    async def drop(self, letter_id: str) -> Buried:
        """Forget a letter and return what it was; raises DeadLetterNotFound where there is none."""
        letter = await self.get(letter_id)
        await self.link.command("XDEL", self.keys.dead(), letter_id)
        return letter

    async def expire(self) -> int:
        """Forget the letters that have been kept for 30 days; returns how many those were."""
        seconds, _ = await self.link.command("TIME")
        oldest = int(seconds) * 1000 - LETTER_KEEP_MS
        return int(await self.link.command("XTRIM", self.keys.dead(), "MINID", oldest))

    async def replay(self, letter_id: str, *, ttl: int) -> str:
        """Send the letter's envelope again, and return the id of the trace it travels in.

        It keeps its ids where its trace has not ended; otherwise it opens a new trace whose record
        names the letter. It gets a budget of at least `ttl`, because it may have died for want of
        one. A repetition returns the first answer and sends nothing.
        """
        letter = await self.get(letter_id)
        if letter.head is None:
            raise EnvelopeError(detail="a letter whose head cannot be read cannot be replayed")
        head = letter.head.model_copy(update={"ttl": max(letter.head.ttl, ttl)})
        fresh_id = new_id()
        fresh = head.model_copy(
            update={"id": fresh_id, "trace_id": fresh_id, "parent_message_id": None}
        )
        call = bind(
            "replay",
            first=self.keys.replay(letter_id),
            trace=self.keys.trace(head.trace_id),
            fresh=self.keys.trace(fresh_id),
            open=self.keys.open_traces(),
            stream=self.keys.router(),
            letter=letter_id,
            trace_id=head.trace_id,
            fresh_id=fresh_id,
            entry=head.target or head.sender,
            head=encode_head(head),
            fresh_head=encode_head(fresh),
            body=letter.body_bytes,
            keep_ms=LETTER_KEEP_MS,
        )
        answer = await self.link.run(call)
        return str(answer[1].decode())


def facts_of(letter: DeadLetter) -> bytes:
    """What a letter tells beside its envelope, as it is kept on the stream."""
    return pack(
        {
            "detail": letter.detail,
            "sender_path": letter.sender,
            "original_target": letter.original_target,
            "resolved_target": letter.resolved_target,
            "attempts": letter.attempts,
            "edges": [dict(edge) for edge in letter.edges],
        }
    )


def _read(entry: bytes, fields: list[bytes]) -> Buried:
    values: dict[bytes, Any] = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        head = decode_head(values[b"head"])
    except EnvelopeError:
        head = None
    letter_id = entry.decode()
    return Buried(
        id=letter_id,
        code=values[b"code"].decode(),
        trace_id=values[b"trace"].decode(),
        died_at=int(letter_id.partition("-")[0]),
        facts=unpack(values[b"facts"]),
        head=head,
        head_bytes=values[b"head"],
        body_bytes=values[b"body"],
    )
