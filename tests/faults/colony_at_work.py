"""A colony at work while something happens to its server, and what came of every message.

What handlers say they do is kept on another server, which nothing happens to.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from colony.envelope import new_id
from colony.errors import ServerUnavailable
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.claims import comes_true
from colony.testing.fleet import Fleet, Process
from colony.testing.nursery import Nursery
from tests.faults.tree import CELLS, ROOT, STORE, Kind, Sums, ask, judge, spec

CLAIM_IDLE_S: Final = 0.4
PATIENCE_S: Final = 40.0
POLL_S: Final = 0.02
KINDS: Final[Sequence[Kind]] = ("rounds", "large", "ledger", "lull", "turns", "talk")

_JOURNAL: Final = "journal"


class ColonyAtWork:
    """A router and two workers, each a process; who sends does not give up."""

    def __init__(self, fleet: Fleet, journal: Link) -> None:
        self.fleet = fleet
        self.keys = fleet.keys
        self.link = Link(fleet.url)
        self.asked: dict[str, Kind] = {}
        self._journal = journal
        self._sending: asyncio.Task[None] | None = None

    def router(self, url: str | None = None) -> Process:
        """Start a router, at another address where one is given."""
        return self.fleet.router(environment=_at(url))

    def worker(self, url: str | None = None, *, cells: Sequence[str] = ("*",)) -> Process:
        """Start a worker, at another address where one is given."""
        patterns = [part for cell in cells for part in ("--cells", cell)]
        return self.fleet.worker("--root", str(ROOT), *patterns, environment=_at(url))

    async def start(self) -> None:
        """A router and two workers serve."""
        processes = [self.router(), self.worker(), self.worker()]
        await asyncio.gather(*(process.serving() for process in processes))

    async def send(self, *kinds: Kind, count: int = 1) -> list[str]:
        """Admit so many questions of each kind at once, however long it takes; their traces."""
        chosen = [kind for kind in kinds for _ in range(count)]
        return await asyncio.gather(*(self._send(kind) for kind in chosen))

    def keep_sending(self, *kinds: Kind, pause_s: float = 0.05) -> None:
        """Admit questions one after the other until `finish`."""

        async def send() -> None:
            while True:
                for kind in kinds:
                    await self.send(kind)
                    await asyncio.sleep(pause_s)

        self._sending = asyncio.create_task(send())

    async def stop_sending(self) -> None:
        """Nothing more is admitted."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
            self._sending = None

    async def finish(self) -> Sums:
        """What became of everything, once nothing moves any more or patience ends."""
        await self.stop_sending()
        await self.within(self.at_rest)
        sums = await judge(self.link, self.keys, self.asked, await self.handled())
        sums.notes += [f"{p.role} {p.pid}: {p.status}\n{p.log}" for p in self.fleet.processes]
        sums.notes.append(str(await self.left()))
        return sums

    async def handled(self) -> list[bytes]:
        """What handlers said."""
        found: list[bytes] = await self._journal.command("LRANGE", self._journal_key, 0, -1)
        return found

    async def left(self) -> dict[str, int]:
        """What waits in a stream, or is open."""
        streams = [self.keys.router(), self.keys.quiet(), *map(self.keys.cell, (*CELLS, *STORE))]
        lengths = await asyncio.gather(*(self.link.command("XLEN", s) for s in streams))
        opened = await self.link.command("ZCARD", self.keys.open_traces())
        return {**dict(zip(streams, map(int, lengths), strict=True)), "open": int(opened)}

    async def at_rest(self) -> bool:
        """Whether nothing waits anywhere."""
        return not any((await self.left()).values())

    async def answers(self, more: int) -> None:
        """So many traces more have ended than had when this was called."""
        before = -1

        async def ended() -> bool:
            nonlocal before
            count = int(await self.link.command("ZCARD", self.keys.ended_traces()))
            before = count if before < 0 else before
            return count >= before + more

        assert await self.within(ended), await self.left()

    async def within(self, claim: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the claim comes true while patience lasts; a server may be away meanwhile."""

        async def known_to_hold() -> bool:
            try:
                return await claim()
            except ServerUnavailable:
                return False

        return await comes_true(known_to_hold, patience_s=PATIENCE_S)

    async def attempts(self) -> dict[str, list[str]]:
        """The handles that were counted as attempts, by trace."""
        found: dict[str, list[str]] = {}
        for trace_id in self.asked:
            counted = await self.link.command("HVALS", self.keys.attempts(trace_id))
            if counted:
                found[trace_id] = [each.decode() for each in counted]
        return found

    async def close(self) -> None:
        """Nothing is sent and nothing runs any more."""
        await self.stop_sending()
        self.fleet.close()
        await self._journal.command("UNLINK", self._journal_key)
        await self.link.close()

    @property
    def _journal_key(self) -> str:
        return f"{_JOURNAL}-{self.keys.name}"

    async def _send(self, kind: Kind) -> str:
        trace_id = new_id()
        while True:
            try:
                await ask(self.link, self.keys, kind, trace_id=trace_id)
            except ServerUnavailable:
                await asyncio.sleep(POLL_S)
            else:
                self.asked[trace_id] = kind
                return trace_id


@asynccontextmanager
async def colony_at_work(
    nursery: Nursery,
    url: str,
    journal_url: str,
    *,
    name: str = "work",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[ColonyAtWork]:
    """A colony whose tree is published and of which no process runs yet."""
    own = {
        "COLONY_CLAIM_IDLE_S": str(CLAIM_IDLE_S),
        "COLONY_LOG_LEVEL": "info",
        "FAULTS_JOURNAL": f"{_JOURNAL}-{name}",
        "FAULTS_JOURNAL_URL": journal_url,
        **(environment or {}),
    }
    journal = Link(journal_url)
    with Fleet(nursery, url, name, environment=own) as fleet:
        colony = ColonyAtWork(fleet, journal)
        try:
            await Publication(colony.link, Keys(name)).publish(spec())
            yield colony
        finally:
            await colony.close()
            await journal.close()


def _at(url: str | None) -> dict[str, str]:
    return {} if url is None else {"COLONY_REDIS_URL": url}
