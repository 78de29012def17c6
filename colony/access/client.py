"""Access: what a client of a colony may ask, over one connection to its server."""

import asyncio
from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import Final, Self, TypeVar

from colony.access.admission import Admission
from colony.access.bulk import Tally, drop_all, replay_all
from colony.access.documents import Documents
from colony.access.endings import Endings
from colony.access.feed import Feed
from colony.access.message_log import MessageLog
from colony.access.registry import Registered, registry
from colony.access.rounds import Round, Rounds
from colony.access.status import Status, read_status
from colony.access.threads import QuestionThread, Threads
from colony.access.trace_list import ListedTrace, TraceList
from colony.blobs import Blobs
from colony.dead_letters import DeadLetters, Which
from colony.errors import RoundNotFound, ServerUnavailable
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.sessions import Sessions
from colony.slots import holders
from colony.topology.model import Topology
from colony.traces import Trace, Traces

PATIENCE_S: Final = 10.0

T = TypeVar("T")


class Access:
    """The colony `name` on the server at `url`. Connects when it is first asked something."""

    def __init__(self, url: str, name: str) -> None:
        self.keys = Keys(name)
        # Nobody waits longer for an answer: a connection that owes one for so long is given up.
        self.link = Link(url, silence_s=PATIENCE_S)
        self.publication = Publication(self.link, self.keys)
        self.admission = Admission(self.link, self.keys, self.publication)
        self.traces = Traces(self.link, self.keys)
        self.sessions = Sessions(self.link, self.keys)
        self.trace_list = TraceList(self.link, self.keys)
        self.threads = Threads(self.link, self.keys)
        self.documents = Documents(self.link, self.keys)
        self.blobs = Blobs(self.link, self.keys)
        self.dead_letters = DeadLetters(self.link, self.keys)
        self.messages = MessageLog(self.link, self.keys)
        self.endings = Endings(self.link, self.keys)
        self.feed = Feed(self.link, self.keys)

    async def topology(self) -> Topology:
        """The newest topology; of version 0 and empty where none was published."""
        await self.publication.refresh()
        return self.publication.current

    async def registry(self) -> list[Registered]:
        """Every cell of the newest topology."""
        topology = await self.topology()
        return registry(topology, await holders(self.link, self.keys, "worker"))

    async def rounds(self, *, turn_id: str | None = None) -> list[Round]:
        """The open rounds, the oldest first; raises RoundNotFound where `turn_id` has none."""
        stores = await self._stores()
        found = await Rounds(self.link, self.keys).open(stores, turn_id=turn_id)
        if turn_id is not None and not found:
            raise RoundNotFound(turn_id=turn_id)
        return found

    async def thread(self, question: str) -> QuestionThread:
        """What is kept of a question, named by its turn_id or its trace: what its models were sent,
        and its rows; raises ThreadNotFound where nothing is."""
        return await self.threads.find(question, await self._stores())

    async def described(self, traces: Iterable[Trace]) -> list[ListedTrace]:
        """Traces with what they were asked, as far as the tree lets bodies be seen, and whom they
        wait for."""
        settings = (await self.topology()).settings
        return await self.trace_list.described(traces, settings.trace_bodies)

    async def replay(self, letter_id: str) -> str:
        """Send a dead letter's envelope again with a whole budget; the trace it travels in."""
        settings = (await self.topology()).settings
        return await self.dead_letters.replay(
            letter_id,
            ttl=settings.message_default_ttl,
            keep_ms=settings.dead_letter_retention_ms,
        )

    async def replay_all(self, which: Which, *, limit: int | None, dry_run: bool) -> Tally:
        """Send the envelopes of the oldest letters again, each with a whole budget, or count them.

        Letters that were replayed before are passed over; `dry_run` sends nothing.
        """
        replay = None if dry_run else self.replay
        return await replay_all(self.dead_letters, which, replay=replay, limit=limit)

    async def drop_all(self, which: Which, *, limit: int | None, dry_run: bool) -> Tally:
        """Forget the oldest letters, or count them; `dry_run` changes nothing."""
        return await drop_all(self.dead_letters, which, limit=limit, dry_run=dry_run)

    async def status(self) -> Status:
        """The colony at this moment."""
        return await read_status(self.link, self.keys, self.publication)

    async def close(self) -> None:
        """Whoever waits or follows comes to an end, and the connection is closed."""
        await self.feed.close()
        await self.endings.close()
        await self.link.close()

    async def _stores(self) -> list[str]:
        cells = (await self.topology()).cells.values()
        return [cell.path for cell in cells if cell.cell.type == "store"]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def promptly(answer: Awaitable[T]) -> T:
    """What is awaited; raises ServerUnavailable where a server that hangs keeps it too long."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await answer
    except TimeoutError:
        raise ServerUnavailable(detail=f"no answer within {PATIENCE_S:g} s") from None
