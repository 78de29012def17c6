"""The worker's desk: envelopes to cells come in, what the cells emit goes out to be routed."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pydantic import JsonValue

from colony import attempts
from colony.agent.changes import RunChanges
from colony.agent.in_hand import RunInHand
from colony.body import Body, Entry
from colony.codec import encode_body, encode_head
from colony.contract import broken_promises, unmet_needs
from colony.desk import letter_of
from colony.envelope import DeadLetter, Emission, Envelope, Head, derived_id, digest, new_id
from colony.errors import (
    CellError,
    ColonyError,
    Fenced,
    JobFailed,
    MessageTimeout,
    ServerUnavailable,
    ToolOverdue,
)
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.log import get_logger
from colony.long_results import shelved
from colony.publication import Publication
from colony.replicas import Replicas
from colony.requests import Recent
from colony.results import bounded, failed_handle, failed_result
from colony.routing import COLONY, answer
from colony.streams import Delivery, Outgoing, Step, Streams
from colony.traces import Traces
from colony.workshop import Hosted, Workshop

# How long the answer holds that a trace still takes work.
FRESH_S: Final = 1.0

# How often it is asked whether work is still wanted, while it is done.
WATCH_S: Final = 0.5

NOT_RUN: Final = "not run, because another call that came with it does not fit its tool"

NOT_APPROVED: Final = "not run, because its arguments are not those that were let out"

log = get_logger("colony.worker")


class WorkerDesk:
    """The streams of a workshop's cells in, the router's stream out."""

    def __init__(
        self, streams: Streams, keys: Keys, publication: Publication, workshop: Workshop
    ) -> None:
        self.streams = streams
        self.keys = keys
        self.publication = publication
        self.workshop = workshop
        self.traces = Traces(streams.link, keys)
        self._paths: dict[str, str] = {}
        self._recent = Recent()
        self._tokens: dict[Delivery, str] = {}

    def sources(self) -> Sequence[str]:
        """The streams of the cells that run here."""
        self._paths = {self.keys.cell(path): path for path in self.workshop.cells}
        return [*self._paths]

    def capacity(self, source: str) -> int:
        """How many envelopes of a cell may be in hand."""
        hosted = self.workshop.cells.get(self.owner(source))
        return hosted.cell.prefetch if hosted else 0

    def is_apart(self, source: str) -> bool:
        """Whether the handles of a cell run in other processes."""
        hosted = self.workshop.cells.get(self.owner(source))
        return hosted is not None and self.workshop.is_apart(hosted.spec)

    def max_deliveries(self) -> int:
        """How often an envelope may be handled before it is given up."""
        return self.publication.current.settings.max_deliveries

    def owner(self, source: str) -> str:
        """The path of the cell a stream belongs to."""
        return self._paths.get(source, source)

    def about(self) -> Mapping[str, JsonValue]:
        """What this process tells of itself: the cells it hosts, those it could not start."""
        return {"cells": [*sorted(self.workshop.cells)], "failed": {**self.workshop.failed}}

    async def decide(self, delivery: Delivery) -> Step:
        """What the cell emits for the envelope, on its way to be routed."""
        head = delivery.head
        path = self.owner(delivery.source)
        hosted = self.workshop.cells.get(path)
        if hosted is None:
            raise CellError(detail=f"{path} does not run here any more", retryable=True)
        await self._ask(delivery)
        body = await self.streams.blobs.open(delivery.body)
        envelope = Envelope.model_construct(**dict(head), body=body)
        hosted = self.workshop.facing(hosted, envelope.hop)
        contract = hosted.spec.contract
        unmet = unmet_needs(envelope, contract) if contract else []
        if unmet:
            return self._refuse(delivery, path, "consumes_violation", unmet)
        host = self._host(hosted, envelope, delivery)
        try:
            emissions = await self._answered(hosted, envelope, host, delivery)
        except JobFailed as error:
            call = next(envelope.body.each("tool_call"), None)
            emissions = [failed_handle(error.code, str(error), (call.id if call else None) or "")]
        broken = [p for e in emissions for p in broken_promises(e, contract)] if contract else []
        if broken:
            return self._refuse(delivery, path, "contract_violation", broken)
        step = Step(delivery, kept=host.kept, shelved=host.shelved)
        if host.run_in_hand is not None:
            step.run = _changes(host.run_in_hand, emissions)
        for index, emission in enumerate(emissions):
            self._emit(step, _address(envelope, emission, path, index), emission.body)
        return step

    async def _answered(
        self, hosted: Hosted, envelope: Envelope, host: LiveHost, delivery: Delivery
    ) -> Sequence[Emission]:
        """What the cell emits; where it is a tool, every call in time and with bounded results."""
        tool = hosted.tool
        if tool is None:
            return await self._handle(hosted, envelope, host, delivery)
        name, calls = tool.declaration.name, [*envelope.body.each("tool_call")]
        misfits = tool.misfits(envelope.body)
        if misfits:
            # The cell gets all of the calls or none, and the id of each is answered.
            problems = {call.id or "": misfits.get(call.id or "", NOT_RUN) for call in calls}
            return [failed_result(name, "invalid_arguments", problems)]
        if _is_changed(envelope, calls):
            problem = {call.id or "": NOT_APPROVED for call in calls}
            return [failed_result(name, "arguments_changed", problem)]
        try:
            emissions = await self._handle(hosted, envelope, host, delivery)
        except (ToolOverdue, JobFailed) as error:
            # Without a call there is no id to answer.
            if not calls:
                raise
            host.kept.clear()
            return [failed_result(name, error.code, {call.id or "": str(error) for call in calls})]
        if not hosted.cell.reads_ranges:
            emissions = [await shelved(emission, host) for emission in emissions]
        return [bounded(emission) for emission in emissions]

    async def _handle(
        self, hosted: Hosted, envelope: Envelope, host: LiveHost, delivery: Delivery
    ) -> Sequence[Emission]:
        asked_at = time.monotonic()
        # The clock starts when handling does, not while the envelope waits for its turn.
        async with hosted.gate:
            if time.monotonic() - asked_at > FRESH_S:
                await self._ask(delivery)
            return await self._once(hosted, envelope, host, delivery)

    async def _once(
        self, hosted: Hosted, envelope: Envelope, host: LiveHost, delivery: Delivery
    ) -> Sequence[Emission]:
        """What the cell makes of the envelope; of a tool that changes something, in a run, once."""
        if not self.is_once(hosted, envelope):
            return await self.perform(hosted, envelope, host, delivery)
        # The same where the server has to be asked again whether it may begin, and no longer.
        token = self._tokens.setdefault(delivery, new_id())

        async def begin() -> Sequence[Emission]:
            self._tokens.pop(delivery, None)
            return await self.perform(hosted, envelope, host, delivery)

        asked_again = False
        try:
            return await self.begin_once(host, token, begin, delivery)
        except ServerUnavailable:
            asked_again = True
            raise
        finally:
            if not asked_again:
                self._tokens.pop(delivery, None)

    async def begin_once(
        self,
        host: LiveHost,
        attempt: str,
        handle: Callable[[], Awaitable[Sequence[Emission]]],
        delivery: Delivery,
    ) -> Sequence[Emission]:
        """What an attempt gives that is the first; where the tree says so, only if a replica knows
        of it as well."""
        if self.publication.current.settings.durability == "server":
            return await attempts.once(host, attempt, handle)
        replicas = Replicas(self.streams.link.url, self.keys)
        return await attempts.once(
            host, attempt, handle, confirmed=lambda: replicas.have_it(delivery.server)
        )

    def is_once(self, hosted: Hosted, envelope: Envelope) -> bool:
        """Whether a handle that was begun and cut off is not begun again."""
        changes = hosted.tool is not None and not hosted.tool.declaration.read_only
        return changes and envelope.session is not None and not self.workshop.is_apart(hosted.spec)

    async def perform(
        self, hosted: Hosted, envelope: Envelope, host: LiveHost, delivery: Delivery
    ) -> Sequence[Emission]:
        """What the cell makes of the envelope, in its time and in this process."""
        handling = asyncio.ensure_future(_staying(hosted.cell.handle(envelope, host)))
        return await self._in_time(handling, hosted, delivery)

    def limit_ms(self, hosted: Hosted) -> int:
        """How long one handle of the cell may take."""
        timeout_ms = hosted.cell.message_timeout_ms(
            hosted.spec.cell.message_timeout,
            self.publication.current.settings.message_timeout_default_ms,
        )
        tool_ms = hosted.tool.declaration.timeout_ms if hosted.tool else None
        return min(timeout_ms, tool_ms or timeout_ms)

    async def _in_time(
        self, handling: asyncio.Future[Sequence[Emission]], hosted: Hosted, delivery: Delivery
    ) -> Sequence[Emission]:
        tool_ms = hosted.tool.declaration.timeout_ms if hosted.tool else None
        limit_ms = self.limit_ms(hosted)
        try:
            done = await self._ended(handling, limit_ms / 1000, delivery)
        finally:
            # Not waited for: a handler that will not be cancelled must not hold its delivery.
            if not handling.done():
                handling.cancel()
                handling.add_done_callback(_forget)
        if not done:
            late = ToolOverdue if limit_ms == tool_ms else MessageTimeout
            raise late(path=hosted.spec.path, timeout_ms=limit_ms)
        if handling.cancelled():
            # Not by us. Passed on, it would end our own task, and the delivery stayed in hand.
            raise CellError(detail="the handler was cancelled from within")
        return handling.result()

    async def _ended(
        self, handling: asyncio.Future[Sequence[Emission]], limit_s: float, delivery: Delivery
    ) -> bool:
        """Whether it ended in its time; raises Fenced where its trace takes no more meanwhile."""
        until = time.monotonic() + limit_s
        while (left_s := until - time.monotonic()) > 0:
            if (await asyncio.wait([handling], timeout=min(left_s, WATCH_S)))[0]:
                return True
            # A server that is away says nothing of the trace.
            with suppress(ServerUnavailable):
                await self._ask(delivery)
        return handling.done()

    async def _ask(self, delivery: Delivery) -> None:
        """Returns if the trace still takes work; raises Fenced if it does not."""
        trace_id = delivery.head.trace_id
        if await self.traces.fenced(trace_id, server=delivery.server):
            raise Fenced(trace_id=trace_id)

    def _host(self, hosted: Hosted, envelope: Envelope, delivery: Delivery) -> LiveHost:
        return LiveHost(
            link=self.streams.link,
            keys=self.keys,
            spec=hosted.spec,
            directory=hosted.directory,
            tools=hosted.tools,
            envelope=envelope,
            server=delivery.server,
            recent=self._recent,
        )

    def _emit(self, step: Step, head: Head, body: Body) -> None:
        try:
            outgoing = Outgoing(self.keys.router(), encode_head(head), encode_body(body))
        except ColonyError as error:
            # The emission cannot be kept as it is; the letter holds what it was an answer to.
            step.letters.append(self._letter(step.delivery, head.sender, error.code, str(error)))
            return
        step.published.append(outgoing)

    def _refuse(self, delivery: Delivery, path: str, code: str, problems: list[str]) -> Step:
        """A dead letter, and colony's answer to whoever the envelope names in `reply_to`."""
        step = Step(delivery)
        step.letters.append(self._letter(delivery, path, code, "; ".join(problems)))
        reply = answer(delivery.head, code, ttl=delivery.head.ttl, suffix="reply")
        if reply is not None and reply.body is not None:
            self._emit(step, reply.head, reply.body)
        return step

    def _letter(self, delivery: Delivery, path: str, code: str, detail: str) -> DeadLetter:
        head = delivery.head
        log.warning(code, cell=path, trace=head.trace_id, message=head.id, detail=detail)
        return letter_of(delivery, path, code, detail)


def _changes(run: RunInHand, emissions: Sequence[Emission]) -> RunChanges:
    """What a handle changes in its run; raises CellError where it asks and emits."""
    if run.changes.asks and emissions:
        raise CellError(detail="a handle that asks emits nothing before it is answered")
    return run.changes


def _is_changed(envelope: Envelope, calls: Sequence[Entry]) -> bool:
    """Whether the one call of an envelope is not the one that was let out."""
    approved = envelope.hop.get("args_hash")
    if approved is None:
        return False
    return len(calls) != 1 or digest(json.loads(calls[0].text or "{}")) != approved


async def _staying(handling: Awaitable[Sequence[Emission]]) -> Sequence[Emission]:
    """What a handler emits; one that exits ends its handle and not the process."""
    try:
        return await handling
    except SystemExit as error:
        raise CellError(detail=f"the handler asked the process to exit: {error}") from error


def _forget(handling: asyncio.Future[Sequence[Emission]]) -> None:
    if not handling.cancelled():
        handling.exception()


def _address(envelope: Envelope, emission: Emission, path: str, index: int) -> Head:
    """The head of an emission: it has no target until edges give it one.

    What a cell makes of colony's own reply is never replied to in turn, or two cells that refuse
    each other's envelopes would go on until the ttl is spent.
    """
    return Head(
        id=derived_id(envelope.id, index),
        trace_id=envelope.trace_id,
        target=None,
        ttl=envelope.ttl,
        parent_message_id=envelope.id,
        correlation_id=envelope.correlation_id,
        sender=path,
        reply_to=None if envelope.sender == COLONY else path,
        context=envelope.context,
        hop=emission.hop,
        session=envelope.session,
    )
