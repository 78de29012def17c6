"""Retention: what a partition keeps beyond its end, and that it goes when its time is up.

A retired trace expires by itself. What no server lets expire is swept: the list of ended traces,
old dead letters, old rows of stores; so it goes even where nothing new ever comes.
"""

import asyncio
from typing import Final

from colony.dead_letters import DeadLetters
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.runs import AgentSessions
from colony.store.expiry import expire_rows
from colony.traces import Traces

SWEEP_S: Final = 10.0
PAGE: Final = 256


class Retention:
    """How long things are kept, as the newest topology says. Any number may sweep."""

    def __init__(self, link: Link, keys: Keys, publication: Publication) -> None:
        self.link = link
        self.keys = keys
        self.publication = publication
        self.traces = Traces(link, keys)
        self.dead_letters = DeadLetters(link, keys)
        self.sessions = AgentSessions(link, keys)

    async def sweep(self) -> None:
        """Let everything go whose time is up by the server's clock; nothing before a tree is known.

        A repeat, and another sweep at the same time, change nothing.
        """
        if self.publication.current.version == 0:
            # A tree may say that what is here is to be kept for longer than usual.
            return
        settings = self.publication.current.settings
        await self.dead_letters.expire(keep_ms=settings.dead_letter_retention_ms)
        await self.forget_traces()
        await self.sessions.forget(settings.session_retention_ms)
        for path in await self.link.command("SMEMBERS", self.keys.cells()):
            await expire_rows(self.link, self.keys, path.decode())

    async def forget_traces(self) -> int:
        """Take what ended too long ago off the list of ended traces; returns how many those were.

        One that does not expire yet, because the report that nothing of it was under way any more
        was lost, is retired now. What still has envelopes under way stays on the list.
        """
        keep_ms = self.publication.current.settings.trace_retention_ms
        seconds, micros = await self.link.command("TIME")
        until = int(seconds) * 1000 + int(micros) // 1000 - keep_ms
        forgotten = stayed = 0
        while page := await self._ended(until, stayed):
            retired = await asyncio.gather(
                *(self.traces.retire(trace_id, keep_ms=keep_ms) for trace_id in page)
            )
            gone = [trace_id for trace_id, goes in zip(page, retired, strict=True) if goes]
            if gone:
                await self.link.command("ZREM", self.keys.ended_traces(), *gone)
            forgotten += len(gone)
            stayed += len(page) - len(gone)
        return forgotten

    async def _ended(self, until: int, offset: int) -> list[str]:
        found = await self.link.command(
            "ZRANGE", self.keys.ended_traces(), "-inf", until, "BYSCORE", "LIMIT", offset, PAGE
        )
        return [trace_id.decode() for trace_id in found]
