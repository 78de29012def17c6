"""Sessions: the questions of one session wait for each other, those of different ones do not.

A trace has its place in its session from its birth to its end, and the first of them has the turn.
What the others send along an edge `in_session_order` is parked; whatever ends the first publishes
what the next has parked, in the same script.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgpack
from pydantic import JsonValue

from colony.codec import encode_head
from colony.envelope import digest
from colony.errors import SettledElsewhere
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import bind
from colony.streams import Delivery
from colony.traces import Traces

LOOK_S: Final = 5.0
PAGE: Final = 500
START: Final = b"0"
# No id of a trace looks like this.
NO_TRACE: Final = "-"

log = get_logger("colony.sessions")


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session some traces of which wait, and the trace that has the turn."""

    session: str
    traces: int
    turn: str | None

    def to_json(self) -> dict[str, JsonValue]:
        """The session as a JSON object."""
        return {"session": self.session, "traces": self.traces, "turn": self.turn}


class Sessions:
    """The sessions of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys
        self._traces = Traces(link, keys)
        self._cursor = START

    async def take_turn(self, delivery: Delivery, session: str) -> None:
        """Return where no older trace of the session is open.

        Elsewhere the delivery is parked until that is so, and SettledElsewhere raised. A trace that
        named no session has its place in this one from here on; one of another session goes on.
        """
        head = delivery.head
        call = bind(
            "park",
            source=delivery.source,
            trace=self.keys.trace(head.trace_id),
            order=self.keys.order(digest(session)),
            parked=self.keys.parked(),
            waiting=self.keys.waiting(),
            repairs=self.keys.repairs(),
            group=GROUP,
            entry=delivery.entry,
            trace_id=head.trace_id,
            session=session,
            head=encode_head(head),
            body=delivery.body,
        )
        answer = await self.link.run(call, server=delivery.server)
        if answer[0] != b"turn":
            raise SettledElsewhere(entry=delivery.entry)

    async def waits(self, trace_id: str) -> bool:
        """Whether a trace has envelopes that wait for its turn."""
        return bool(await self.link.command("HEXISTS", self.keys.parked(), trace_id))

    async def waits_for(self, trace_id: str, session: str | None) -> str | None:
        """The trace of the session that has the turn, where this one waits for it."""
        if session is None or not await self.waits(trace_id):
            return None
        return await self._first(session)

    async def parked(self, trace_id: str) -> list[bytes]:
        """The bodies of the envelopes of a trace that wait for its turn, in their order."""
        kept = await self.link.command("HGET", self.keys.parked(), trace_id)
        return [] if kept is None else [body for _, body in msgpack.unpackb(kept, raw=True)]

    async def held(self, *, limit: int) -> list[HeldSession]:
        """Sessions that have traces that wait, those with the most first."""
        flat = await self.link.command("ZREVRANGE", self.keys.waiting(), 0, limit - 1, "WITHSCORES")
        names = [name.decode() for name in flat[::2]]
        turns = await asyncio.gather(*map(self._first, names))
        return [
            HeldSession(name, int(float(traces)), turn)
            for name, traces, turn in zip(names, flat[1::2], turns, strict=True)
        ]

    async def count(self) -> tuple[int, int]:
        """How many sessions have traces that wait, and how many traces those are."""
        sessions, traces = await asyncio.gather(
            self.link.command("ZCARD", self.keys.waiting()),
            self.link.command("HLEN", self.keys.parked()),
        )
        return int(sessions), int(traces)

    async def look(self) -> list[str]:
        """Pass on each turn that is nobody's; returns the sessions that were held up.

        That happens where a stranger deletes the record of a trace, or the places of a session.
        Each call looks at some of the sessions that wait, and the next one goes on there.
        """
        server = await self.link.open()
        self._cursor, page = await self.link.command(
            "ZSCAN", self.keys.waiting(), self._cursor, "COUNT", PAGE, server=server
        )
        sessions = [session.decode() for session in page[::2]]
        held_up = await asyncio.gather(*(self._repair(name, server) for name in sessions))
        return [session for session, was in zip(sessions, held_up, strict=True) if was]

    async def _repair(self, session: str, server: str) -> bool:
        first = await self._first(session, server)
        if first is None:
            return await self._place_again(session, server)
        key = self.keys.trace(first)
        state, waits = await asyncio.gather(
            self.link.command("HGET", key, "state", server=server), self.waits(first)
        )
        # One script ends a trace and takes its place away: seen in this order, both are not so.
        ended = state in (None, b"ended") and await self._first(session, server) == first
        if ended or waits:
            await self._traces.leave(first if ended else NO_TRACE, session, server=server)
            log.error("session_held_up", session=session, trace=first)
        return ended or waits

    async def _first(self, session: str, server: str | None = None) -> str | None:
        order = self.keys.order(digest(session))
        found = await self.link.command("ZRANGE", order, 0, 0, server=server)
        return found[0].decode() if found else None

    async def _place_again(self, session: str, server: str) -> bool:
        """Give the traces of a session that wait their places, in the order of their birth."""
        names = await self.link.command("HKEYS", self.keys.parked(), server=server)
        told = await asyncio.gather(*(self._told(name.decode(), server) for name in names))
        pairs = zip(told, names, strict=True)
        born = sorted((at, name) for (own, at), name in pairs if own == session)
        places = [part for place, (_, name) in enumerate(born, 1) for part in (place, name)]
        if not places:
            # What waited was deleted. Whoever is parked meanwhile counts it down below nothing.
            await self.link.command("ZREM", self.keys.waiting(), session, server=server)
            return False
        order = self.keys.order(digest(session))
        await self.link.command("ZADD", order, "NX", *places, server=server)
        log.error("session_held_up", session=session)
        return True

    async def _told(self, trace_id: str, server: str) -> tuple[str, int]:
        session, born = await self.link.command(
            "HMGET", self.keys.trace(trace_id), "session", "created_at", server=server
        )
        return (session or b"").decode(), int(born or 0)
