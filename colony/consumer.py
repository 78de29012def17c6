"""The consumer: read a delivery, decide, commit. Router and worker differ in the middle only.

What is worked on is renewed as long as its handler may still finish, and committed in batches as
handlers come to an end. After a change of server or slot it is abandoned: somebody else has it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from redis.exceptions import ResponseError

from colony import faults
from colony.counts import Counts
from colony.desk import Desk, bury, settle
from colony.errors import (
    CellError,
    ColonyError,
    Fenced,
    ServerChanged,
    ServerUnavailable,
    SettledElsewhere,
)
from colony.hand import Hand
from colony.inbox import Inbox, Read
from colony.log import Outage, get_logger
from colony.pace import Pace
from colony.slots import Slots
from colony.streams import MAX_BATCH, Broken, Delivery, Outcome, Step, Streams, next_batch
from colony.traces import Traces

BUSY_MS: Final = 20
RETRY_S: Final = 1.0
MAX_BACKOFF_S: Final = 5.0
CANCEL_S: Final = 1.0

log = get_logger("colony.consumer")


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
        self.counts = Counts(streams.link, streams.keys)
        self._hand = Hand()
        self._decided: asyncio.Queue[Step] = asyncio.Queue()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        # What this consumer's name holds, from an earlier process or a reply that was lost, and
        # what may be left to reclaim.
        self._behind = True
        self._more_to_reclaim = False
        self._renewed = 0.0

    async def run(self) -> None:
        """Serve the desk until `stop` is called; then finish or hand back what is in hand.

        What an earlier process left unsettled under this consumer name is taken up first.
        """
        self._renewed = _now()
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._commit_for_ever()),
                    group.create_task(self._every(self.pace.renew_ms, self._renew, self._changed)),
                    group.create_task(
                        self._every(self.pace.reclaim_ms, self._reclaim, asyncio.Event())
                    ),
                ]
                await self._serve()
                helpers.pop().cancel()
                await self._drain()
                for helper in helpers:
                    helper.cancel()
        finally:
            for delivery in self._hand:
                self._hand.drop(delivery)

    def stop(self) -> None:
        """Read nothing more; `run` returns when what is in hand is finished or handed back."""
        self._stopping.set()
        self._hand.wake()

    def changed(self) -> None:
        """What the process serves is another thing now: tell it, and take up what is left there."""
        self._behind = True
        self._changed.set()
        self._hand.wake()

    # Reading

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._behind:
                    await self._take_up()
                elif self._hand.any_aside:
                    await self._handle_alone()
                elif self._more_to_reclaim:
                    await self._reclaim()
                else:
                    await self._take(await self._read())
            except ServerChanged as error:
                self._abandon(error)
            except ServerUnavailable as error:
                self._behind = True
                Outage.report(log, error)
                await self._wait_for(self._stopping, RETRY_S)
            except ResponseError as error:
                log.error("read_refused", detail=str(error))
                await self._wait_for(self._stopping, RETRY_S)

    async def _read(self) -> list[Read]:
        sources = self.desk.sources()
        rooms = {source: self._room(source) for source in sources}
        ready = [source for source, room in rooms.items() if room > 0]
        if not ready:
            await self._hand.ease(RETRY_S)
            return []
        # A source that is full now may have room in a moment: do not sleep over it.
        block_ms = self.pace.block_ms if len(ready) == len(sources) else BUSY_MS
        count = min(MAX_BATCH, *(rooms[source] for source in ready), MAX_BATCH)
        found = await self.inbox.read(ready, count=count, block_ms=block_ms)
        if found and faults.armed:
            await faults.reach("after_read")
        return found

    async def _take_up(self) -> None:
        self._behind = False
        for source in self.desk.sources():
            await self._take_again(self.inbox.history(source))

    async def _take_again(self, asked: Awaitable[list[Read]]) -> int:
        """Take what was delivered before, and return how much there was."""
        with self._hand.let_go_meanwhile() as let_go:
            found = await asked
            await self._take([read for read in found if read not in let_go])
            return len(found)

    async def _take(self, found: Iterable[Read]) -> None:
        for read in found:
            if isinstance(read, Broken):
                log.error("envelope_invalid", source=read.source, detail=read.detail)
                await self.streams.bury(read, target=self.desk.owner(read.source))
            elif read not in self._hand:
                apart = self.desk.is_apart(read.source)
                self._hand.take(read, apart=apart)
                if (apart or not read.redelivered) and not self._stopping.is_set():
                    self._hand.start(read, self._handle(read))

    async def _reclaim(self) -> None:
        self._more_to_reclaim = False
        for source in self.desk.sources():
            # One after the other they may take long: others are to have some of them.
            room = 0 if self._hand.any_aside else min(MAX_BATCH, self._room(source))
            if room > 0:
                idle_ms = self.pace.claim_idle_ms
                asked = self.inbox.reclaim(source, idle_ms=idle_ms, count=room)
                self._more_to_reclaim |= await self._take_again(asked) == room

    def _room(self, source: str) -> int:
        return self.desk.capacity(source) - self._hand.load(source)

    # Handling

    async def _handle_alone(self) -> None:
        # Whoever held it before may have crashed over it. Alone in the process, it cannot take
        # neighbours along, and a crash names its cause.
        if self._hand.at_risk:
            await self._hand.ease(RETRY_S)
            return
        delivery = self._hand.next_aside()
        held = await self.slots.renew(delivery.source, [delivery.entry], server=delivery.server)
        if not held:
            # What waits behind it is not renewed: whoever had time has taken it.
            self._hand.let_go(delivery)
        if delivery not in self._hand:
            return
        self._hand.start(delivery, self._handle(delivery))
        while self._hand.at_risk and not self._stopping.is_set():
            await self._hand.ease(RETRY_S)

    async def _handle(self, delivery: Delivery) -> None:
        """Decide what comes of a delivery, and leave it to be committed."""
        delay = 0.1
        while True:
            try:
                step = await self._decide(delivery)
                if faults.armed:
                    await faults.reach("after_handle")
                self._decided.put_nowait(step)
                return
            except ServerUnavailable as error:
                Outage.report(log, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_BACKOFF_S)
            except ServerChanged as error:
                self._abandon(error)
                return
            except SettledElsewhere:
                self._hand.let_go(delivery)
                return
            except (CellError, ResponseError) as error:
                log.warning("left_pending", source=delivery.source, detail=str(error))
                self._hand.let_go(delivery)
                return
            except Exception:
                # Our own mistake. Held on to, it would be renewed for ever and worked on by nobody.
                log.exception("left_pending", source=delivery.source)
                self._hand.let_go(delivery)
                return

    async def _decide(self, delivery: Delivery) -> Step:
        if not delivery.redelivered:
            return await settle(self.desk, delivery)
        token = self._hand.attempt(delivery)
        head, server = delivery.head, delivery.server
        try:
            attempts = await self.traces.attempt(head.trace_id, head.id, token=token, server=server)
        except Fenced:
            return Step(delivery)
        if attempts < self.desk.max_deliveries():
            return await settle(self.desk, delivery)
        detail = f"handled {attempts} times without an end"
        return bury(self.desk, delivery, "delivery_limit", detail)

    # Committing

    async def _commit_for_ever(self) -> None:
        waiting: deque[Step] = deque()
        while True:
            if not waiting:
                waiting.append(await self._decided.get())
            while not self._decided.empty():
                waiting.append(self._decided.get_nowait())
            await self._commit(next_batch(waiting))

    async def _commit(self, batch: Sequence[Step]) -> None:
        delay, sent = 0.1, 0
        # What was abandoned while the server was away is somebody else's.
        while steps := [step for step in batch if step.delivery in self._hand]:
            try:
                if self._overslept():
                    await self._renew()
                    continue
                sent += 1
                outcomes = await self.streams.commit(steps)
            except ServerChanged as error:
                self._abandon(error)
            except ServerUnavailable as error:
                Outage.report(log, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_BACKOFF_S)
            except (ResponseError, ColonyError) as error:
                await self._commit_singly(steps, error)
                return
            else:
                for step, outcome in zip(steps, outcomes, strict=True):
                    _tell(step, outcome, repeated=sent > 1)
                    self._hand.let_go(step.delivery)
                return

    async def _commit_singly(self, steps: Sequence[Step], error: Exception) -> None:
        if len(steps) > 1:
            for step in steps:
                await self._commit([step])
            return
        delivery = steps[0].delivery
        # Left pending: it is delivered again, and dead-lettered if it stays like this.
        log.error("commit_refused", source=delivery.source, detail=str(error))
        self._hand.let_go(delivery)

    # Holding

    def _overslept(self) -> bool:
        """Whether this process stood still so long that others may have what it holds."""
        return (_now() - self._renewed) * 1000 > self.pace.claim_idle_ms

    async def _renew(self) -> None:
        asked = _now()
        if not await self.slots.lease(self.desk.about()):
            lost = self._hand.handling
            self._give_up(self._hand, "the slot had another holder")
            self.inbox.consumer = self.slots.consumer
            await self._count_lost(lost)
            return
        lost = 0
        by_source: dict[tuple[str, str], list[Delivery]] = {}
        for delivery in self._hand.kept:
            by_source.setdefault((delivery.source, delivery.server), []).append(delivery)
        for (source, server), deliveries in by_source.items():
            entries = [delivery.entry for delivery in deliveries]
            held = await self.slots.renew(source, entries, server=server)
            for delivery in deliveries:
                # It may have been committed while the answer was under way.
                if delivery.entry not in held and delivery in self._hand:
                    lost += self._lose(delivery)
        self._renewed = asked
        await self._count_lost(lost)

    def _lose(self, delivery: Delivery) -> bool:
        """Let go of what somebody else has by now; whether it was being handled here."""
        handled = self._hand.handles(delivery)
        if handled:
            # Its handler may still run to its end: that comes too late to be published.
            head = delivery.head
            log.warning("claim_lost", source=delivery.source, trace=head.trace_id, message=head.id)
        self._hand.drop(delivery)
        return handled

    async def _count_lost(self, claims: int) -> None:
        if claims:
            with suppress(ServerUnavailable):  # A full server takes what drains and no count.
                await self.counts.add("claims_lost", claims)

    def _abandon(self, error: ServerChanged) -> None:
        server = error.facts["expected"]
        self._give_up([d for d in self._hand if d.server == server], str(error))

    def _give_up(self, deliveries: Iterable[Delivery], why: str) -> None:
        given_up = list(deliveries)
        log.warning("abandoned", count=len(given_up), detail=why)
        for delivery in given_up:
            self._hand.drop(delivery)
        self._behind = True

    async def _drain(self) -> None:
        deadline = _now() + self.pace.drain_ms / 1000
        while self._hand.handling:
            left = deadline - _now()
            if left <= 0:
                break
            await self._hand.ease(left)
        if self._overslept():
            # Another process may bear this name by now: what it holds is not to be handed back.
            with suppress(ServerUnavailable, ServerChanged):
                await self._renew()
        held = {delivery: self._hand.attempt(delivery) for delivery in self._hand}
        tasks = [task for delivery in held if (task := self._hand.drop(delivery))]
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)
        for delivery, attempt in held.items():
            with suppress(ServerUnavailable, ServerChanged):
                await self.streams.hand_back(
                    delivery, consumer=self.inbox.consumer, attempt=attempt
                )

    # Time

    async def _every(
        self, period_ms: int, act: Callable[[], Awaitable[None]], early: asyncio.Event
    ) -> None:
        while True:
            await self._wait_for(early, period_ms / 1000)
            early.clear()
            try:
                await act()
            except ServerChanged as error:
                self._abandon(error)
            except ServerUnavailable as error:
                self._behind = True
                Outage.report(log, error)
            except ResponseError as error:
                log.error("refused", detail=str(error))

    @staticmethod
    async def _wait_for(event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _tell(step: Step, outcome: Outcome, *, repeated: bool) -> None:
    head = step.delivery.head
    if not outcome.settled:
        # Left pending: handled again, the blob is written anew or gone for good.
        log.warning("blob_lost", trace=head.trace_id)
    elif outcome.token == "stale" and not repeated:
        # Somebody else settled it first. After a lost reply it may have been this very commit.
        log.warning("late", source=step.delivery.source, trace=head.trace_id, message=head.id)
