"""Dead letters: what nobody will handle, kept until somebody replays or drops it."""

import asyncio
import builtins
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import JsonValue

from colony.blobs import Blobs
from colony.codec import blob_reference, decode_body, decode_head, encode_head, pack, unpack
from colony.envelope import DeadLetter, Head, digest, new_id, session_of
from colony.errors import ColonyError, DeadLetterNotFound, EnvelopeError
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind
from colony.paths import within
from colony.topology.model import DEFAULTS

# A letter may be as large as a body.
PAGE: Final = 100
# What stands in a letter for an envelope that is gone.
EMPTY: Final = pack(None)

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Buried:
    """A dead letter as it lies on its stream. `died_at` is in milliseconds since the epoch.

    `replayed_into` is the trace it was replayed into, where it was and that was asked for.
    """

    id: str
    code: str
    trace_id: str
    died_at: int
    facts: Mapping[str, JsonValue]
    head: Head | None
    head_bytes: bytes
    body_bytes: bytes
    replayed_into: str | None = None

    @property
    def cell(self) -> str:
        """Where it died."""
        return str(self.facts.get("resolved_target") or "")

    @property
    def sender(self) -> str:
        """Who sent it; empty where that is not known."""
        return str(self.facts.get("sender_path") or "")

    @property
    def hollow(self) -> bool:
        """Whether there is no envelope in it, not even one that cannot be read."""
        return {self.head_bytes, self.body_bytes} <= {b"", EMPTY}

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
            # Nobody knows how often what was lost had been delivered.
            **({"attempts": None} if self.hollow else {}),
            "replayed_into": self.replayed_into,
            "message": self._message(),
        }

    def told(self) -> dict[str, JsonValue]:
        """What, where and why, without the envelope."""
        told = {"id": self.id, "error_code": self.code, "cell": self.cell}
        return {**told, "detail": self.facts.get("detail")}

    def _message(self) -> JsonValue:
        if self.hollow:
            return None
        if self.head is None:
            return {"head": self.head_bytes.hex(), "body": self.body_bytes.hex()}
        head: dict[str, JsonValue] = self.head.model_dump(mode="json")
        try:
            return {**head, "body": decode_body(self.body_bytes).to_json()}
        except ColonyError:
            return {**head, "body": self.body_bytes.hex()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which letters are asked for; a field that is None asks for nothing. Times in milliseconds.

    `to_path_prefix` holds for where a letter died or was going. `after` and `before` are ids of
    letters; what makes one wrong is found when letters are read.
    """

    code: str | None = None
    trace_id: str | None = None
    to_path_prefix: str | None = None
    from_path_prefix: str | None = None
    since: int | None = None
    until: int | None = None
    after: str | None = None
    before: str | None = None

    def takes(self, letter: Buried) -> bool:
        """Whether a letter is among those, its id left aside."""
        targets = (letter.facts.get("resolved_target"), letter.facts.get("original_target"))
        return (
            self.code in (None, letter.code)
            and self.trace_id in (None, letter.trace_id)
            and any(_below(target, self.to_path_prefix) for target in targets)
            and _below(letter.facts.get("sender_path"), self.from_path_prefix)
            and (self.since is None or letter.died_at >= self.since)
            and (self.until is None or letter.died_at <= self.until)
        )


ALL: Final = Which()


class DeadLetters:
    """The dead letters of one partition, newest last."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def count(self) -> int:
        """How many letters are kept."""
        return int(await self.link.command("XLEN", self.keys.dead()))

    async def list(self, which: Which = ALL, *, limit: int = 100) -> list[Buried]:
        """Letters, oldest first; raises DeadLetterNotFound where an id in `which` is none."""
        return await self._told(await _first(self._pages(which, "XRANGE"), limit))

    async def newest(self, which: Which = ALL, *, limit: int = 100) -> builtins.list[Buried]:
        """Letters, newest first; raises DeadLetterNotFound where an id in `which` is none."""
        return await self._told(await _first(self._pages(which, "XREVRANGE"), limit))

    async def pages(self, which: Which = ALL) -> AsyncGenerator[builtins.list[Buried], None]:
        """Letters, oldest first, some at a time, without those that die from now on.

        Raises DeadLetterNotFound where an id in `which` is none.
        """
        for newest in await self.newest(limit=1):
            until = newest.died_at if which.until is None else min(which.until, newest.died_at)
            async with aclosing(self._pages(replace(which, until=until), "XRANGE")) as pages:
                async for page in pages:
                    yield page

    async def replays(self, letter_ids: Sequence[str]) -> dict[str, str]:
        """The trace that each of these letters was replayed into, of those that were."""
        found = await asyncio.gather(
            *(self.link.command("GET", self.keys.replay(letter_id)) for letter_id in letter_ids)
        )
        known = zip(letter_ids, found, strict=True)
        return {letter_id: trace_id.decode() for letter_id, trace_id in known if trace_id}

    async def get(self, letter_id: str) -> Buried:
        """The letter; raises DeadLetterNotFound where there is none."""
        if not _ENTRY_ID.fullmatch(letter_id):
            raise DeadLetterNotFound(letter_id=letter_id)
        page = await self.link.command("XRANGE", self.keys.dead(), letter_id, letter_id)
        if not page:
            raise DeadLetterNotFound(letter_id=letter_id)
        (letter,) = await self._told([_read(*page[0])])
        return letter

    async def drop(self, letter_id: str) -> Buried:
        """Forget a letter and return what it was; raises DeadLetterNotFound where there is none."""
        letter = await self.get(letter_id)
        await self.forget([letter_id])
        return letter

    async def forget(self, letter_ids: Sequence[str]) -> None:
        """Forget these letters, of which there is at least one; what is not there is no matter."""
        await self.link.command("XDEL", self.keys.dead(), *letter_ids)

    async def expire(self, *, keep_ms: int) -> int:
        """Forget the letters that have been kept for `keep_ms`; returns how many those were."""
        seconds, micros = await self.link.command("TIME")
        oldest = int(seconds) * 1000 + int(micros) // 1000 - keep_ms
        return int(await self.link.command("XTRIM", self.keys.dead(), "MINID", oldest))

    async def replay(
        self, letter_id: str, *, ttl: int, keep_ms: int = DEFAULTS.dead_letter_retention_ms
    ) -> str:
        """Send the letter's envelope again, and return the id of the trace it travels in.

        It keeps its ids where its trace has not ended; otherwise it opens a new trace whose record
        names the letter. It gets a budget of at least `ttl`, because it may have died for want of
        one. A repetition within `keep_ms` returns the first answer and sends nothing.

        Raises DeadLetterNotFound, and what `envelope` raises where there is nothing to be sent.
        """
        letter = await self.get(letter_id)
        sent, body = await self.envelope(letter)
        head = sent.model_copy(update={"ttl": max(sent.ttl, ttl)})
        fresh_id = new_id()
        fresh = head.model_copy(
            update={"id": fresh_id, "trace_id": fresh_id, "parent_message_id": None}
        )
        session = session_of(head.context)
        call = bind(
            "replay",
            first=self.keys.replay(letter_id),
            trace=self.keys.trace(head.trace_id),
            fresh=self.keys.trace(fresh_id),
            open=self.keys.open_traces(),
            stream=self.keys.router(),
            order=self.keys.order(digest(session)),
            letter=letter_id,
            trace_id=head.trace_id,
            fresh_id=fresh_id,
            entry=head.target or head.sender,
            head=encode_head(head),
            fresh_head=encode_head(fresh),
            body=body,
            session=session,
            keep_ms=keep_ms,
        )
        answer = await self.link.run(call)
        return str(answer[1].decode())

    async def envelope(self, letter: Buried) -> tuple[Head, bytes]:
        """Head and body that a replay sends.

        Raises EnvelopeError where the letter holds no envelope, and BlobUnavailable where its body
        was lost before it died.
        """
        if letter.head is None:
            raise EnvelopeError(detail=f"letter {letter.id} cannot be replayed: it has no head")
        encode_head(letter.head)
        # A letter keeps its own copy, unless the blob was gone already when it died.
        blob_id = blob_reference(letter.body_bytes)
        if blob_id is None:
            return letter.head, letter.body_bytes
        return letter.head, await Blobs(self.link, self.keys).get(blob_id)

    async def _told(self, letters: Sequence[Buried]) -> builtins.list[Buried]:
        """The letters, each with the trace it was replayed into."""
        known = await self.replays([letter.id for letter in letters])
        return [replace(letter, replayed_into=known.get(letter.id)) for letter in letters]

    async def _pages(
        self, which: Which, command: str
    ) -> AsyncGenerator[builtins.list[Buried], None]:
        for letter_id in (which.after, which.before):
            if letter_id is not None and not _ENTRY_ID.fullmatch(letter_id):
                raise DeadLetterNotFound(letter_id=letter_id)
        oldest = str(which.since or 0) if which.after is None else f"({which.after}"
        until = "+" if which.until is None else str(which.until)
        newest = until if which.before is None else f"({which.before}"
        start, end = (oldest, newest) if command == "XRANGE" else (newest, oldest)
        while True:
            page = await self.link.command(command, self.keys.dead(), start, end, "COUNT", PAGE)
            letters = [_read(entry, fields) for entry, fields in page]
            if found := [letter for letter in letters if which.takes(letter)]:
                yield found
            if len(page) < PAGE:
                return
            start = f"({letters[-1].id}"


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


async def _first(pages: AsyncGenerator[list[Buried], None], limit: int) -> list[Buried]:
    found: list[Buried] = []
    async with aclosing(pages):
        async for page in pages:
            found += page
            if len(found) >= limit:
                break
    return found[:limit]


def _below(path: JsonValue, prefix: str | None) -> bool:
    return prefix is None or (isinstance(path, str) and within(path, prefix))


def _read(entry: bytes, fields: list[bytes]) -> Buried:
    # What a stranger wrote there is listed like a letter, so that it can be seen and dropped.
    values: dict[bytes, Any] = dict(zip(fields[::2], fields[1::2], strict=True))
    head_bytes = values.get(b"head", b"")
    try:
        head = decode_head(head_bytes)
    except EnvelopeError:
        head = None
    letter_id = entry.decode()
    return Buried(
        id=letter_id,
        code=values.get(b"code", EnvelopeError.code.encode()).decode(errors="replace"),
        trace_id=values.get(b"trace", b"").decode(errors="replace"),
        died_at=int(letter_id.partition("-")[0]),
        facts=_facts(values.get(b"facts", b"")),
        head=head,
        head_bytes=head_bytes,
        body_bytes=values.get(b"body", b""),
    )


def _facts(data: bytes) -> dict[str, JsonValue]:
    try:
        facts = unpack(data)
    except EnvelopeError as error:
        return {"detail": f"no letter of colony: {error}"}
    return facts if isinstance(facts, dict) else {"detail": "no letter of colony"}
