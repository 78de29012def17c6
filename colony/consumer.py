"""The consumer: read a delivery, decide, commit. Router and worker differ in the middle only.

What is in hand is renewed as long as its handler may still finish, and committed in batches as
handlers come to an end. After a change of server or slot it is abandoned: somebody else has it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from redis.exceptions import ResponseError

from colony.desk import Desk, bury, settle
from colony.errors import CellError, ColonyError, Fenced, ServerChanged, ServerUnavailable
from colony.inbox import Inbox, Read
from colony.log import get_logger
from colony.slots import Slots
from colony.streams import MAX_BATCH, MAX_BATCH_BYTES, Broken, Delivery, Step, Streams
from colony.traces import Traces

BLOCK_MS: Final = 1_000
BUSY_BLOCK_MS: Final = 20
MAX_BACKOFF_S: Final = 5.0

log = get_logger("colony.consumer")


@dataclass(frozen=True)
class Pace:
    """The times of a consumer in milliseconds, and how often an envelope may be tried."""

    claim_idle_ms: int = 60_000
    renew_ms: int = 20_000
    reclaim_ms: int = 15_000
    drain_ms: int = 25_000
    max_deliveries: int = 5


class Consumer:
    """The loop of one process over the streams of its desk."""

    def __init__(
        self, desk: Desk, inbox: Inbox, streams: Streams, slots: Slots, *, pace: Pace
    ) -> None:
        self.desk = desk
        self.inbox = inbox
        self.streams = streams
        self.slots = slots
        self.pace = pace
        self.traces = Traces(streams.link, streams.keys)
        self._in_hand: dict[Delivery, asyncio.Task[None] | None] = {}
        self._load: Counter[str] = Counter()
        self._again: deque[Delivery] = deque()
        self._decided: asyncio.Queue[Step] = asyncio.Queue()
        self._eased = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve the desk until `stop` is called; then finish or hand back what is in hand."""
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._commit_for_ever()),
                group.create_task(self._every(self.pace.renew_ms, self._renew)),
                group.create_task(self._every(self.pace.reclaim_ms, self._reclaim)),
            ]
            await self._serve()
            helpers.pop().cancel()
            await self._drain()
            for helper in helpers:
                helper.cancel()

    def stop(self) -> None:
        """Read nothing more; `run` returns when what is in hand is finished or handed back."""
        self._stopping.set()
        self._eased.set()

    async def take_up(self, sources: Iterable[str]) -> None:
        """Take up what an earlier process under this consumer name left unsettled."""
        for source in sources:
            await self._take(await self.inbox.history(source))

    # Reading

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._again:
                    await self._handle_alone(self._again.popleft())
                else:
                    await self._take(await self._read())
            except ServerChanged as error:
                self._abandon(str(error))
            except ServerUnavailable as error:
                log.error("server_unavailable", detail=str(error))
                await self._pause(1.0)

    async def _read(self) -> list[Read]:
        sources = self.desk.sources()
        rooms = {source: self.desk.capacity(source) - self._load[source] for source in sources}
        ready = [source for source, room in rooms.items() if room > 0]
        if not ready:
            self._eased.clear()
            await self._wait_for(self._eased, BLOCK_MS / 1000)
            return []
        # A source that is full now may have room in a moment: do not sleep over it.
        block_ms = BLOCK_MS if len(ready) == len(sources) else BUSY_BLOCK_MS
        count = min(MAX_BATCH, *(rooms[source] for source in ready), MAX_BATCH)
        return await self.inbox.read(ready, count=count, block_ms=block_ms)

    async def _take(self, found: Iterable[Read]) -> None:
        for read in found:
            if isinstance(read, Broken):
                log.error("envelope_invalid", source=read.source, detail=read.detail)
                await self.streams.bury(read, target=self.desk.owner(read.source))
            elif read not in self._in_hand:
                self._load[read.source] += 1
                self._in_hand[read] = None
                if read.redelivered:
                    self._again.append(read)
                else:
                    self._in_hand[read] = asyncio.create_task(self._handle(read))

    async def _reclaim(self) -> None:
        for source in self.desk.sources():
            found, deleted = await self.inbox.reclaim(
                source, idle_ms=self.pace.claim_idle_ms, count=MAX_BATCH
            )
            if deleted:
                log.error("entries_lost", source=source, count=deleted)
            await self._take(found)

    # Handling

    async def _handle_alone(self, delivery: Delivery) -> None:
        # Whoever held it before may have crashed over it. Alone in the process, it cannot take
        # neighbours along, and a crash names its cause.
        while len(self._in_hand) > len(self._again) + 1:
            self._eased.clear()
            await self._wait_for(self._eased, BLOCK_MS / 1000)
        if delivery not in self._in_hand:
            return
        task = asyncio.create_task(self._try_again(delivery))
        self._in_hand[delivery] = task
        await asyncio.wait([task])

    async def _try_again(self, delivery: Delivery) -> None:
        head = delivery.head
        try:
            attempts = await self.traces.attempt(head.trace_id, head.id)
        except Fenced:
            self._decided.put_nowait(Step(delivery))
            return
        if attempts < self.pace.max_deliveries:
            await self._handle(delivery)
        else:
            detail = f"handled {attempts} times without an end"
            self._decided.put_nowait(bury(self.desk, delivery, "delivery_limit", detail))

    async def _handle(self, delivery: Delivery) -> None:
        """Decide what comes of a delivery, and leave it to be committed."""
        delay = 0.1
        while True:
            try:
                self._decided.put_nowait(await settle(self.desk, delivery))
                return
            except ServerUnavailable as error:
                log.error("server_unavailable", detail=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_BACKOFF_S)
            except ServerChanged as error:
                self._abandon(str(error))
                return
            except CellError as error:
                log.warning("left_pending", source=delivery.source, detail=str(error))
                self._release(delivery)
                return

    # Committing

    async def _commit_for_ever(self) -> None:
        waiting: deque[Step] = deque()
        while True:
            if not waiting:
                waiting.append(await self._decided.get())
            while not self._decided.empty():
                waiting.append(self._decided.get_nowait())
            await self._commit(_batch(waiting))

    async def _commit(self, steps: Sequence[Step]) -> None:
        steps = [step for step in steps if step.delivery in self._in_hand]
        delay = 0.1
        while steps:
            try:
                outcomes = await self.streams.commit(steps)
                break
            except ServerChanged as error:
                self._abandon(str(error))
                return
            except ServerUnavailable as error:
                log.error("server_unavailable", detail=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_BACKOFF_S)
            except (ResponseError, ColonyError) as error:
                await self._commit_singly(steps, error)
                return
        for step, outcome in zip(steps, outcomes if steps else (), strict=True):
            if outcome.settled:
                self._release(step.delivery)
            else:
                # Left pending: handled again, the blob is written anew, or found gone for good.
                log.warning("blob_lost", trace=step.delivery.head.trace_id)
                self._release(step.delivery)

    async def _commit_singly(self, steps: Sequence[Step], error: Exception) -> None:
        if len(steps) > 1:
            for step in steps:
                await self._commit([step])
            return
        step = steps[0]
        # Left pending: it is delivered again, and dead-lettered if it stays like this.
        log.error("commit_refused", source=step.delivery.source, detail=str(error))
        self._release(step.delivery)

    # Holding

    async def _renew(self) -> None:
        if not await self.slots.lease(self.desk.about()):
            self._abandon("the slot has another holder")
            self.inbox.consumer = self.slots.consumer
            return
        by_source: dict[tuple[str, str], list[Delivery]] = {}
        for delivery in self._in_hand:
            by_source.setdefault((delivery.source, delivery.server), []).append(delivery)
        for (source, server), deliveries in by_source.items():
            entries = [delivery.entry for delivery in deliveries]
            held = await self.slots.renew(source, entries, server=server)
            for delivery in deliveries:
                if delivery.entry not in held:
                    self._drop(delivery)

    def _release(self, delivery: Delivery) -> None:
        if delivery in self._in_hand:
            del self._in_hand[delivery]
            self._load[delivery.source] -= 1
            self._eased.set()

    def _drop(self, delivery: Delivery) -> None:
        task = self._in_hand.get(delivery)
        if task is not None:
            task.cancel()
        if delivery in self._again:
            self._again.remove(delivery)
        self._release(delivery)

    def _abandon(self, why: str) -> None:
        log.warning("abandoned", count=len(self._in_hand), detail=why)
        for delivery in list(self._in_hand):
            self._drop(delivery)

    async def _drain(self) -> None:
        deadline = asyncio.get_running_loop().time() + self.pace.drain_ms / 1000
        while len(self._in_hand) > len(self._again):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            self._eased.clear()
            await self._wait_for(self._eased, left)
        remaining = list(self._in_hand)
        for delivery in remaining:
            self._drop(delivery)
        await self.streams.hand_back(remaining, consumer=self.slots.consumer)

    # Time

    async def _every(self, period_ms: int, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period_ms / 1000)
            try:
                await act()
            except ServerChanged as error:
                self._abandon(str(error))
            except ServerUnavailable as error:
                log.error("server_unavailable", detail=str(error))

    async def _pause(self, seconds: float) -> None:
        await self._wait_for(self._stopping, seconds)

    @staticmethod
    async def _wait_for(event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


def _batch(waiting: deque[Step]) -> list[Step]:
    """Take from the front what one commit may hold: one server, 64 steps, 1 MiB."""
    batch = [waiting.popleft()]
    size = batch[0].size()
    while waiting and len(batch) < MAX_BATCH:
        size += waiting[0].size()
        if size > MAX_BATCH_BYTES or waiting[0].delivery.server != batch[0].delivery.server:
            break
        batch.append(waiting.popleft())
    return batch
