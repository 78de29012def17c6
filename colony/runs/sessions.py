"""Sessions of agents: how they are made, found, copied and forgotten."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from colony.agent.history import HistoryRow
from colony.agent.record import Limits, SessionRecord
from colony.envelope import digest, is_id, new_id
from colony.errors import CursorMalformed, SessionBusy, SessionNotFound
from colony.keys import Keys
from colony.link import Link
from colony.lua.packing import pack
from colony.lua.registry import bind
from colony.runs.reading import texts
from colony.topology.model import DEFAULTS

PAGE: Final = 50
SWEPT_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions, the one that changed last first, and the cursor of the next page, if any."""

    sessions: list[SessionRecord]
    cursor: str


@dataclass(frozen=True, slots=True, order=True)
class _Listed:
    """The place of a session in a list: several may have changed in one millisecond."""

    at: int
    name: str

    @property
    def session_id(self) -> str:
        return self.name.partition(" ")[0]

    @classmethod
    def parse(cls, cursor: str) -> Self:
        """The place that a cursor is; raises CursorMalformed where it is none."""
        at, _, name = cursor.partition(" ")
        if not at.isdecimal():
            raise CursorMalformed(cursor=cursor)
        return cls(int(at), name)

    def __str__(self) -> str:
        return f"{self.at} {self.name}"


class AgentSessions:
    """The sessions of agents of one partition.

    Whoever asks as an `owner` finds its own; a session of somebody else is as if it were not there.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def create(
        self,
        agent: str,
        *,
        owner: str,
        model: str = "",
        limits: Limits | None = None,
        rules: Mapping[str, Sequence[str]] | None = None,
        ask_policy: str = "ask",
        history: Sequence[HistoryRow] = (),
        keep_ms: int = DEFAULTS.session_retention_ms,
    ) -> SessionRecord:
        """A session of an agent, idle, with what was said in it before.

        Where no run of it begins within `keep_ms` it is forgotten.
        """
        session_id = new_id()
        fields = {
            "agent": agent,
            "owner": owner,
            "model": model,
            "limits": (limits or Limits()).model_dump_json(exclude_unset=True),
            "rules": json.dumps({effect: list(found) for effect, found in (rules or {}).items()}),
            "ask_policy": ask_policy,
        }
        call = bind(
            "make_session",
            session=self.keys.agent_session(session_id),
            history=self.keys.history(session_id),
            sessions=self.keys.agent_sessions(""),
            owned=self.keys.agent_sessions(digest(owner)),
            fields=pack([*map(list, fields.items())]),
            rows=pack([row.encode() for row in history]),
            listed=listed(session_id, owner),
            keep_ms=keep_ms,
        )
        await self.link.run(call)
        return await self.get(session_id)

    async def get(self, session_id: str, *, owner: str | None = None) -> SessionRecord:
        """A session; raises SessionNotFound where there is none, or it is not the owner's."""
        key = self.keys.agent_session(session_id)
        # What is no id could name a key of something else.
        fields = await self.link.command("HGETALL", key) if is_id(session_id) else None
        if not fields:
            raise SessionNotFound(session_id=session_id)
        session = SessionRecord.read(session_id, texts(fields))
        if owner is not None and session.owner != owner:
            raise SessionNotFound(session_id=session_id)
        return session

    async def page(
        self, *, owner: str | None = None, cursor: str = "", limit: int = PAGE
    ) -> SessionPage:
        """Sessions by their newest change, from the one behind `cursor` on."""
        key = self.keys.agent_sessions("" if owner is None else digest(owner))
        behind = _Listed.parse(cursor) if cursor else None
        found: list[SessionRecord] = []
        offset = 0
        while True:
            names = await self.link.command(
                "ZRANGE", key, behind.at if behind else "+inf", "-inf", "BYSCORE", "REV",
                "LIMIT", offset, PAGE, "WITHSCORES",
            )  # fmt: skip
            for name, at in zip(names[::2], names[1::2], strict=True):
                place = _Listed(int(float(at)), name.decode())
                if behind is not None and place >= behind:
                    continue
                # One that was kept for its time is still listed, until the next sweep.
                with suppress(SessionNotFound):
                    found.append(await self.get(place.session_id, owner=owner))
                if len(found) == limit:
                    return SessionPage(found, str(place))
            if len(names) < 2 * PAGE:
                return SessionPage(found, "")
            offset += PAGE

    async def history(self, session_id: str) -> list[HistoryRow]:
        """What was said in a session."""
        rows = await self.link.command("LRANGE", self.keys.history(session_id), 0, -1)
        return [HistoryRow.decode(row) for row in rows]

    async def fork(
        self,
        session: SessionRecord,
        *,
        rows: int,
        keep_ms: int = DEFAULTS.session_retention_ms,
    ) -> SessionRecord:
        """A session that begins with the first `rows` rows of the history of another one.

        Raises SessionNotFound where that is gone.
        """
        session_id = new_id()
        fields = {
            "agent": session.agent,
            "owner": session.owner,
            "model": session.model,
            "title": session.title,
            "limits": session.limits.model_dump_json(exclude_unset=True),
            "rules": json.dumps(session.rules),
            "ask_policy": session.ask_policy,
            "fork_of": session.id,
        }
        call = bind(
            "fork_session",
            origin=self.keys.agent_session(session.id),
            said=self.keys.history(session.id),
            session=self.keys.agent_session(session_id),
            history=self.keys.history(session_id),
            sessions=self.keys.agent_sessions(""),
            owned=self.keys.agent_sessions(digest(session.owner)),
            fields=pack([*map(list, fields.items())]),
            rows=rows,
            listed=listed(session_id, session.owner),
            keep_ms=keep_ms,
        )
        answer = await self.link.run(call)
        if answer[0] == b"missing":
            raise SessionNotFound(session_id=session.id)
        return await self.get(session_id)

    async def delete(self, session: SessionRecord) -> None:
        """Nothing is left of a session but the traces of its runs.

        Raises SessionBusy where a run drives it.
        """
        call = bind(
            "delete_session",
            session=self.keys.agent_session(session.id),
            events=self.keys.session_events(session.id),
            history=self.keys.history(session.id),
            steers=self.keys.steers(session.id),
            sessions=self.keys.agent_sessions(""),
            owned=self.keys.agent_sessions(digest(session.owner)),
            listed=listed(session.id, session.owner),
        )
        answer = await self.link.run(call)
        if answer[0] == b"busy":
            raise SessionBusy(session_id=session.id)

    async def forget(self, keep_ms: int) -> int:
        """Take sessions off the lists that are no longer kept; returns how many those were."""
        seconds, micros = await self.link.command("TIME")
        until = int(seconds) * 1000 + int(micros) // 1000 - keep_ms
        everyone = self.keys.agent_sessions("")
        gone = offset = 0
        while True:
            old = await self.link.command(
                "ZRANGE", everyone, "-inf", until, "BYSCORE", "LIMIT", offset, SWEPT_AT_ONCE
            )
            here = 0
            for name in old:
                session_id, _, owner = name.decode().partition(" ")
                if not await self.link.command("EXISTS", self.keys.agent_session(session_id)):
                    await self.link.command("ZREM", self.keys.agent_sessions(owner), name)
                    here += int(await self.link.command("ZREM", everyone, name))
            gone += here
            if len(old) < SWEPT_AT_ONCE:
                return gone
            # Those that are still kept stand in front of the next ones.
            offset += len(old) - here


def listed(session_id: str, owner: str) -> str:
    """What names a session in the lists: its id, and whose list it is in beside that of all."""
    return f"{session_id} {digest(owner)}"
