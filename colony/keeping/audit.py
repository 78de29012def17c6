"""The audit: a trace counts as many envelopes as there are, even after some were deleted.

Of an entry that is gone nobody knows whose it was. So all streams, and what is parked, are searched
for the envelopes of a trace; where it took no step meanwhile, what was not found is lost, and the
count is corrected.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from redis.exceptions import ResponseError

from colony.codec import encode_kept_head, length_of, pack, trace_of
from colony.dead_letters import facts_of
from colony.envelope import DeadLetter
from colony.errors import EnvelopeError
from colony.keys import Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import bind
from colony.publication import Publication
from colony.records import HopRecord, read_record
from colony.runs.asks import RunAsks

AUDIT_S: Final = 1.0
# A search costs a walk through the whole backlog: all keepers together begin one so often.
PAUSE_MS: Final = 5_000
REST_S: Final = 10 * 60.0
PAGE: Final = 100
RECORDS: Final = 500
LOST: Final = "envelope_lost"

log = get_logger("colony.audit")

Attend = Callable[[str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a trace stands: how many envelopes it counts, and how many steps it has taken."""

    live: int
    steps: int


class Audit:
    """The search for what was lost. Any number of keepers may search; a script decides."""

    def __init__(self, link: Link, keys: Keys, publication: Publication, attend: Attend) -> None:
        self.link = link
        self.keys = keys
        self.publication = publication
        self._asks = RunAsks(link, keys)
        self._attend = attend
        # Traces that may have lost an envelope, where each stood when all were last looked at, and
        # the losses that were known when doubt fell on every trace.
        self._doubted: set[str] = set()
        self._resting: Mapping[str, Standing] | None = None
        self._next_rest = 0.0
        self._known = 0

    async def look(self) -> list[str]:
        """Search if anything was lost, or if it is time; returns the traces that were corrected.

        A trace that moves during the search is searched for again by the next look. One that did
        not move between two looks, minutes apart, is searched for though nobody saw a loss.
        """
        losses, searched = await self._losses()
        # What another keeper has looked into needs no second look. Not by comparing which is more:
        # after a failover there may be fewer.
        lost = losses not in (self._known, searched)
        resting = _now() >= self._next_rest
        if not (lost or resting or self._doubted) or not await self._begins():
            return []
        if lost or resting:
            await self._doubt(everything=lost, resting=resting)
            self._known = losses
        began = _now()
        corrected, self._doubted = await self.search(self._doubted)
        if self._doubted:
            await self._rest(_now() - began)
        else:
            await self._searched(self._known)
        return corrected

    async def search(self, doubted: Iterable[str]) -> tuple[list[str], set[str]]:
        """Correct the traces that lost an envelope; returns those, and those that moved meanwhile.

        Of what moved nothing is known. Raises ServerChanged where the streams became those of
        another server.
        """
        server = await self.link.open()
        before = await self._standings(doubted, server)
        living = {trace_id for trace_id, standing in before.items() if standing.live > 0}
        for trace_id in before.keys() - living:
            # It waits for a keeper, whose notice may be what was lost.
            await self._attend(trace_id)
        found = await self._tally(living, server) if living else Counter[str]()
        after = await self._standings(living, server)
        corrected, moved = [], set()
        for trace_id in sorted(living & after.keys()):
            standing = before[trace_id]
            if after[trace_id] != standing:
                moved.add(trace_id)
            elif found[trace_id] < standing.live:
                if await self._correct(trace_id, standing, found[trace_id], server):
                    corrected.append(trace_id)
                else:
                    moved.add(trace_id)
        return corrected, moved

    async def _losses(self) -> tuple[int, int]:
        lost, broken, searched = await self.link.command(
            "HMGET", self.keys.repairs(), "entries_lost", "entries_broken", "searched"
        )
        return int(lost or 0) + int(broken or 0), int(searched or 0)

    async def _begins(self) -> bool:
        answer = await self.link.command("SET", self.keys.audit(), "1", "NX", "PX", PAUSE_MS)
        return answer is not None

    async def _rest(self, took_s: float) -> None:
        # What moves will be searched for again: that must not be all that keepers do.
        pause_ms = max(PAUSE_MS, round(4 * 1000 * took_s))
        await self.link.command("SET", self.keys.audit(), "1", "PX", pause_ms)

    async def _searched(self, known: int) -> None:
        # Two keepers may write in either order: the worst that comes of it is one search more.
        losses, searched = await self._losses()
        if searched < known <= losses:
            await self.link.command("HSET", self.keys.repairs(), "searched", known)

    async def _doubt(self, *, everything: bool, resting: bool) -> None:
        server = await self.link.open()
        standings = await self._standings(await self._ids(), server)
        before = self._resting
        if everything or before is None:
            self._doubted.update(standings)
        else:
            self._doubted.update(i for i, found in standings.items() if before.get(i) == found)
        if resting:
            self._resting = standings
            self._next_rest = _now() + REST_S

    async def _ids(self) -> set[str]:
        """Traces that have not ended, and those that ended so long ago that they should be gone."""
        ids = {name async for name in self._members(self.keys.open_traces())}
        keep_ms = self.publication.current.settings.trace_retention_ms
        seconds, _ = await self.link.command("TIME")
        overdue = await self.link.command(
            "ZRANGE", self.keys.ended_traces(), "-inf", int(seconds) * 1000 - keep_ms, "BYSCORE"
        )
        return ids | {name.decode() for name in overdue}

    async def _members(self, key: str) -> AsyncIterator[str]:
        cursor = b"0"
        while True:
            cursor, page = await self.link.command("ZSCAN", key, cursor, "COUNT", RECORDS)
            for name in page[::2]:
                yield name.decode()
            if cursor == b"0":
                return

    async def _standings(self, ids: Iterable[str], server: str) -> dict[str, Standing]:
        found: dict[str, Standing] = {}
        for page in _pages(ids, RECORDS):
            records = await asyncio.gather(*(self._standing(name, server) for name in page))
            pairs = zip(page, records, strict=True)
            found |= {name: standing for name, standing in pairs if standing is not None}
        return found

    async def _standing(self, trace_id: str, server: str) -> Standing | None:
        try:
            live, steps = await self.link.command(
                "HMGET", self.keys.trace(trace_id), "live", "steps", server=server
            )
            return None if live is None else Standing(int(live), int(steps or 0))
        except (ResponseError, ValueError):
            # No record. It must not keep others waiting.
            return None

    async def _tally(self, ids: set[str], server: str) -> Counter[str]:
        """How many envelopes of each trace lie in the streams, or wait for a turn or an answer."""
        # Before the streams: what is released meanwhile is counted twice rather than never.
        found = await self._parked(ids, server)
        # Cells that are published from here on get envelopes by steps that are noticed.
        cells = await self.publication.cell_streams()
        for source in (self.keys.router(), *cells):
            async for head in self._heads(source, server):
                trace_id = trace_of(head)
                if trace_id in ids:
                    found[trace_id] += 1
        return found

    async def _parked(self, ids: set[str], server: str) -> Counter[str]:
        found = await self._asks.parked(server=server)
        for page in _pages(ids, RECORDS):
            kept = await self.link.command("HMGET", self.keys.parked(), *page, server=server)
            pairs = zip(page, kept, strict=True)
            found.update({name: _count(data) for name, data in pairs if data is not None})
        return found

    async def _heads(self, source: str, server: str) -> AsyncIterator[bytes]:
        newest = await self.link.command("XREVRANGE", source, "+", "-", "COUNT", 1, server=server)
        if not newest:
            return
        start, last = "-", newest[0][0]
        while True:
            call = bind("heads", source=source, start=start, last=last, count=PAGE)
            page = (await self.link.run(call, server=server))[1]
            for head in page[1::2]:
                yield head
            if len(page) < 2 * PAGE:
                return
            start = f"({page[-2].decode()}"

    async def _correct(self, trace_id: str, standing: Standing, found: int, server: str) -> bool:
        lost = standing.live - found
        hop = await self._last_hop(trace_id, server)
        call = bind(
            "correct",
            trace=self.keys.trace(trace_id),
            quiet=self.keys.quiet(),
            dead=self.keys.dead(),
            repairs=self.keys.repairs(),
            trace_id=trace_id,
            steps=standing.steps,
            live=standing.live,
            found=found,
            code=LOST,
            facts=facts_of(_letter(lost, hop)),
            head=encode_kept_head(hop.head) if hop else b"",
            empty=pack(None),
        )
        answer = await self.link.run(call, server=server)
        corrected = bool(answer[0] == b"corrected")
        if corrected:
            log.error(LOST, trace=trace_id, lost=lost, left=found)
        return corrected

    async def _last_hop(self, trace_id: str, server: str) -> HopRecord | None:
        newest = await self.link.command(
            "XREVRANGE", self.keys.log(trace_id), "+", "-", "COUNT", 1, server=server
        )
        try:
            return read_record(newest[0][0], newest[0][1][1]) if newest else None
        except (EnvelopeError, ValueError):
            # Written by another version: the letter tells less.
            return None


def _count(parked: bytes) -> int:
    try:
        return length_of(parked)
    except EnvelopeError:
        # Nobody can release it: it is as lost as what is not there.
        return 0


def _letter(lost: int, hop: HopRecord | None) -> DeadLetter:
    detail = f"deleted by a stranger while under way, one of {lost}; what it was is not known"
    if hop is not None:
        detail += f"; the last hop of its trace went from {hop.head.sender} to {hop.head.target}"
    return DeadLetter(
        code=LOST,
        detail=detail,
        sender="",
        original_target=None,
        resolved_target=None,
        head=None,
        body=b"",
    )


def _pages(names: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(sorted(names))
    while page := list(islice(rest, size)):
        yield page


def _now() -> float:
    return asyncio.get_running_loop().time()
