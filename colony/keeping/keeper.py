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
from colony.body import Body
from colony.codec import decode_head, encode_body, encode_head
from colony.envelope import Head, Headers, derived_id
from colony.errors import (
    ColonyError,
    EnvelopeError,
    ServerUnavailable,
    TopologyError,
    TraceNotFound,
)
from colony.inbox import START, make_groups, reclaim
from colony.keeping.ask_deadlines import LOOK_S as ASKS_S
from colony.keeping.ask_deadlines import AskDeadlines
from colony.keeping.audit import AUDIT_S, Audit
from colony.keeping.repairs import CONSUMERS_S, ORPHANS_S, Repairs
from colony.keeping.retention import SWEEP_S, Retention
from colony.keeping.unhosted import LOOK_S, Unhosted
from colony.keys import GROUP
from colony.link import Link
from colony.log import Outage, get_logger
from colony.lua.registry import bind
from colony.publication import POLL_S, Publication
from colony.routing import route
from colony.sessions import LOOK_S as SESSIONS_S
from colony.sessions import Sessions
from colony.streams import Streams
from colony.topology.model import QUIET
from colony.traces import Trace, Traces

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
        self.sessions = Sessions(streams.link, streams.keys)
        self.asks = AskDeadlines(streams.link, streams.keys)
        self.audit = Audit(streams.link, streams.keys, publication, self._attended)
        self._cursor = START

    async def run(self, reader: Link, consumer: str) -> None:
        """Attend to all that is due until cancelled.

        `reader` is used for blocking reads and for nothing else.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._for_ever(self._end_overdue, pause_s=OVERDUE_S))
            orphans, consumers = self.repairs.adopt_orphans, self.repairs.forget_consumers
            group.create_task(self._for_ever(orphans, pause_s=ORPHANS_S))
            group.create_task(self._for_ever(consumers, pause_s=CONSUMERS_S))
            group.create_task(self._for_ever(self.asks.look, pause_s=ASKS_S))
            group.create_task(self._for_ever(self.sessions.look, pause_s=SESSIONS_S))
            # What the others do depends on the tree.
            read = self._by_a_tree(lambda: self._read(reader, consumer))
            group.create_task(self._for_ever(read, pause_s=0))
            again = self._by_a_tree(lambda: self._reclaim(consumer))
            group.create_task(self._for_ever(again, pause_s=self._reclaim_idle_ms / 2000))
            unhosted, audit = self._by_a_tree(self.unhosted.look), self._by_a_tree(self.audit.look)
            group.create_task(self._for_ever(unhosted, pause_s=LOOK_S))
            group.create_task(self._for_ever(audit, pause_s=AUDIT_S))
            group.create_task(self._for_ever(self.retention.sweep, pause_s=SWEEP_S))

    async def attend(self, trace_id: str) -> None:
        """Do what a trace that was reported quiet needs: revive it, end it, or retire it.

        Raises TopologyError before a tree is known that says which of these.
        """
        try:
            trace = await self.traces.get(trace_id)
        except TraceNotFound:
            return
        if trace.live > 0:
            return
        if self.publication.current.version == 0:
            raise TopologyError(detail=f"no tree is known that could take up trace {trace_id}")
        if not trace.ended and not await self._revive(trace):
            await self._end(trace)
        await self._retire(trace_id)

    async def end_overdue(self) -> list[str]:
        """End the traces whose deadline has passed by the server's clock; returns their ids."""
        server = await self.link.open()
        seconds, micros = await self.link.command("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        ended: list[str] = []
        stayed = 0
        while True:
            due = await self.link.command(
                "ZRANGE", self.keys.deadlines(), "-inf", now, "BYSCORE", "LIMIT", stayed, BATCH
            )
            names = [trace_id.decode(errors="replace") for trace_id in due]
            done = await asyncio.gather(*(self._timed_out(name) for name in names))
            if over := [entry for entry, well in zip(due, done, strict=True) if well]:
                # An end takes it off the list, but for one that had ended before or is gone.
                await self.link.command("ZREM", self.keys.deadlines(), *over, server=server)
            ended += [name for name, well in zip(names, done, strict=True) if well]
            stayed += len(due) - len(over)
            if len(due) < BATCH:
                return ended

    async def _timed_out(self, trace_id: str) -> bool:
        try:
            await self.traces.end(trace_id, "failed", "trace_timeout")
        except TraceNotFound:
            return True
        except ResponseError as error:
            # Its record is none. It must not keep others waiting.
            log.error("overdue_unended", trace=trace_id, detail=str(error))
            return False
        return True

    async def _revive(self, trace: Trace) -> bool:
        """Send an envelope down the quiet lane; False where no edge takes it or it was used up."""
        topology = self.publication.current
        revival = trace.revivals + 1
        if not topology.edges_from(QUIET):
            return False
        allowed = topology.settings.quiet_revivals + await self._answered(trace)
        if revival > allowed:
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
                told=trace.dead,
                head=encode_head(head),
                body=encode_body(Body(messages=())),
            )
        )
        return True

    async def _answered(self, trace: Trace) -> int:
        """How many calls of tools were answered in a run: however many of them are lost, it goes
        on as long as it comes further."""
        if trace.agent_session is None:
            return 0
        found = await self.link.command("HGET", self.keys.run(trace.id), "tool_calls")
        return int(found or 0)

    async def _end(self, trace: Trace) -> None:
        await self.traces.end_quiet(trace.id, trace.session)

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
        except ServerUnavailable:
            # Not about this trace: it is told once, however many were in hand.
            raise
        except (ColonyError, ResponseError) as error:
            # Left pending, so that it is tried again; it must not keep others waiting.
            log.error("quiet_unattended", trace=trace_id, detail=str(error))
            return False
        except Exception:  # Our own mistake must not keep others waiting either.
            log.exception("quiet_unattended", trace=trace_id)
            return False
        return True

    async def _end_overdue(self) -> None:
        for trace_id in await self.end_overdue():
            log.warning("trace_timeout", trace=trace_id)

    def _by_a_tree(self, act: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        """`act`, but nothing as long as no tree was published that can be read here."""

        async def once_known() -> None:
            if self.publication.current.version == 0:
                await asyncio.sleep(POLL_S)
            else:
                await act()

        return once_known

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
            except Exception:  # Our own mistake: the router it is part of goes on.
                log.exception("keeper_failed")
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
    # One that was told of before is no reason to go on, once there is an answer.
    if trace.dead > trace.told or (trace.dead and not trace.outputs):
        # Of an envelope that was lost nothing else is known.
        told = {
            "error_code": trace.error_code,
            "dead_target": trace.dead_target,
            "dead_message_id": trace.dead_message_id,
        }
        hop |= {name: value for name, value in told.items() if value is not None}
    last = _last_head(trace)
    return Head(
        # Not of trace and number alone: that is an emission of the first envelope.
        id=derived_id(trace.id, "quiet", revival),
        trace_id=trace.id,
        target=None,
        sender=QUIET,
        ttl=ttl,
        context=last.context if last else _context_of(trace),
        hop=hop,
        session=trace.agent_session or (last.session if last else None),
    )


def _context_of(trace: Trace) -> Headers:
    """What a run is known by, where no envelope of it is left to say so."""
    if trace.agent_session is None:
        return {}
    return {"session_id": trace.agent_session, "turn_id": trace.id, "iter": 0}


def _last_head(trace: Trace) -> Head | None:
    for data in (trace.dead_head, trace.last):
        if data:
            try:
                return decode_head(data)
            except EnvelopeError:
                continue
    return None
