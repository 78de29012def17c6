"""The keeper: nothing stays quiet unnoticed. Any number of keepers may race; scripts decide.

A quiet trace is taken up by the topology's quiet lane, or it ends. An ended one is retired. A trace
past its deadline is ended. What waits where nobody works is given up, what is kept too long goes,
what is broken is repaired.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from redis.exceptions import ResponseError

from colony import faults
from colony.audit import AUDIT_S, Audit
from colony.body import Body
from colony.codec import decode_head, encode_body, encode_head
from colony.envelope import Head, Headers, derived_id
from colony.errors import ColonyError, EnvelopeError, ServerUnavailable, TraceNotFound
from colony.inbox import START, make_groups, reclaim
from colony.keys import GROUP
from colony.link import Link
from colony.log import Outage, get_logger
from colony.lua.registry import bind
from colony.publication import Publication
from colony.repairs import CONSUMERS_S, ORPHANS_S, Repairs
from colony.retention import SWEEP_S, Retention
from colony.routing import route
from colony.streams import Streams
from colony.topology.model import QUIET
from colony.traces import Trace, Traces
from colony.unhosted import LOOK_S, Unhosted

BATCH: Final = 64
BLOCK_MS: Final = 1_000
RECLAIM_IDLE_MS: Final = 10_000
OVERDUE_S: Final = 1.0
RETRY_S: Final = 1.0

log = get_logger("colony.keeper")


class Keeper:
    """What is due, one guarded script each.

    A report that another keeper read and did not attend to is taken over after `reclaim_idle_ms`.
    """

    def __init__(
        self,
        streams: Streams,
        publication: Publication,
        *,
        reclaim_idle_ms: int = RECLAIM_IDLE_MS,
    ) -> None:
        self.link = streams.link
        self.keys = streams.keys
        self.publication = publication
        self.traces = Traces(streams.link, streams.keys)
        self.retention = Retention(streams.link, streams.keys, publication)
        self.unhosted = Unhosted(streams, publication)
        self._reclaim_idle_ms = reclaim_idle_ms
        self.repairs = Repairs(streams.link, streams.keys, publication)
        self.audit = Audit(streams.link, streams.keys, publication, self._attended)
        self._cursor = START

    async def run(self, reader: Link, consumer: str) -> None:
        """Attend to all that is due until cancelled.

        `reader` is used for blocking reads and for nothing else.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._for_ever(lambda: self._read(reader, consumer), pause_s=0))
            pause_s = self._reclaim_idle_ms / 2000
            group.create_task(self._for_ever(lambda: self._reclaim(consumer), pause_s=pause_s))
            group.create_task(self._for_ever(self._end_overdue, pause_s=OVERDUE_S))
            group.create_task(self._for_ever(self.unhosted.look, pause_s=LOOK_S))
            group.create_task(self._for_ever(self.retention.sweep, pause_s=SWEEP_S))
            orphans, consumers = self.repairs.adopt_orphans, self.repairs.forget_consumers
            group.create_task(self._for_ever(orphans, pause_s=ORPHANS_S))
            group.create_task(self._for_ever(consumers, pause_s=CONSUMERS_S))
            group.create_task(self._for_ever(self.audit.look, pause_s=AUDIT_S))

    async def attend(self, trace_id: str) -> None:
        """Do what a trace that was reported quiet needs: revive it, end it, or retire it."""
        try:
            trace = await self.traces.get(trace_id)
        except TraceNotFound:
            return
        if trace.live > 0:
            return
        if not trace.ended and not await self._revive(trace):
            await self._end(trace)
        await self._retire(trace_id)

    async def end_overdue(self) -> list[str]:
        """End the traces whose deadline has passed by the server's clock; returns their ids."""
        seconds, micros = await self.link.command("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        due = await self.link.command(
            "ZRANGE", self.keys.deadlines(), "-inf", now, "BYSCORE", "LIMIT", 0, BATCH
        )
        for trace_id in due:
            try:
                await self.traces.end(trace_id.decode(), "failed", "trace_timeout")
            except TraceNotFound:
                await self.link.command("ZREM", self.keys.deadlines(), trace_id)
        return [trace_id.decode() for trace_id in due]

    async def _revive(self, trace: Trace) -> bool:
        """Send an envelope down the quiet lane; False where no edge takes it or it was used up."""
        topology = self.publication.current
        revival = trace.revivals + 1
        if revival > topology.settings.quiet_revivals or not topology.edges_from(QUIET):
            return False
        head = _quiet_head(trace, revival, topology.settings.message_default_ttl)
        # Routed only to see whether an edge takes it: what comes of it is the router's to write.
        if not route(head, topology).arrivals:
            return False
        await self.link.run(
            bind(
                "revive",
                trace=self.keys.trace(trace.id),
                stream=self.keys.router(),
                revival=revival,
                head=encode_head(head),
                body=encode_body(Body(messages=())),
            )
        )
        return True

    async def _end(self, trace: Trace) -> None:
        await self.link.run(
            bind(
                "end_quiet",
                trace=self.keys.trace(trace.id),
                open=self.keys.open_traces(),
                ended=self.keys.ended_traces(),
                deadlines=self.keys.deadlines(),
                trace_id=trace.id,
            )
        )

    async def _retire(self, trace_id: str) -> None:
        keep_ms = self.publication.current.settings.trace_retention_ms
        await self.traces.retire(trace_id, keep_ms=keep_ms)

    async def _read(self, reader: Link, consumer: str) -> None:
        reply = await reader.command(
            "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", BATCH, "BLOCK", BLOCK_MS,
            "STREAMS", self.keys.quiet(), ">",
        )  # fmt: skip
        if reply and faults.armed:
            await faults.reach("after_quiet_read")
        await self._attend_all(reply[0][1] if reply else [])

    async def _reclaim(self, consumer: str) -> None:
        self._cursor, taken = await reclaim(
            self.link,
            self.keys.quiet(),
            consumer,
            idle_ms=self._reclaim_idle_ms,
            cursor=self._cursor,
            count=BATCH,
        )
        await self._attend_all([(entry, fields) for entry, fields, _ in taken])

    async def _attend_all(self, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> None:
        # A server that forgets what was done for a report needs the report again.
        server = await self.link.open()
        # What is no trace id names no trace, and is settled like one that is gone.
        names = [b"".join(fields[1:2]).decode(errors="replace") for _, fields in entries]
        attended = await asyncio.gather(*(self._attended(name) for name in names))
        done = [entry for (entry, _), well in zip(entries, attended, strict=True) if well]
        if done:
            # Attending twice is harmless, so they are settled after the deed. At once, so that
            # none is ever on the stream and in nobody's hands, or the other way round.
            quiet = self.keys.quiet()
            call = bind("dismiss", quiet=quiet, group=GROUP, entries=done)
            await self.link.run(call, server=server)

    async def _attended(self, trace_id: str) -> bool:
        try:
            await self.attend(trace_id)
        except (ColonyError, ResponseError) as error:
            # Left pending, so that it is tried again; it must not keep others waiting.
            log.error("quiet_unattended", trace=trace_id, detail=str(error))
            return False
        return True

    async def _end_overdue(self) -> None:
        for trace_id in await self.end_overdue():
            log.warning("trace_timeout", trace=trace_id)

    async def _for_ever(self, act: Callable[[], Awaitable[object]], *, pause_s: float) -> None:
        while True:
            try:
                await self._once(act)
            except ServerUnavailable as error:
                Outage.report(log, error)
                await asyncio.sleep(RETRY_S)
            except (ColonyError, ResponseError) as error:
                log.error("keeper_failed", detail=str(error))
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(pause_s)

    async def _once(self, act: Callable[[], Awaitable[object]]) -> None:
        try:
            await act()
        except ResponseError as error:
            if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                raise
            await make_groups(self.link, [self.keys.quiet()])


def _quiet_head(trace: Trace, revival: int, ttl: int) -> Head:
    """The envelope of a revival: it tells where the trace began, what it has, and what died."""
    hop: Headers = {"route": "quiet", "entry": trace.entry, "outputs": trace.outputs}
    if trace.dead:
        # Of an envelope that was lost nothing else is known.
        told = {
            "error_code": trace.error_code,
            "dead_target": trace.dead_target,
            "dead_message_id": trace.dead_message_id,
        }
        hop |= {name: value for name, value in told.items() if value is not None}
    return Head(
        # Not of trace and number alone: that is an emission of the first envelope.
        id=derived_id(trace.id, "quiet", revival),
        trace_id=trace.id,
        target=None,
        sender=QUIET,
        ttl=ttl,
        context=_last_context(trace),
        hop=hop,
    )


def _last_context(trace: Trace) -> Headers:
    for data in (trace.dead_head, trace.last):
        if data:
            try:
                return decode_head(data).context
            except EnvelopeError:
                continue
    return {}
