"""Hosting: what a cell may ask while it handles one envelope, answered by Redis."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from redis.exceptions import RedisError

from colony.agent.events import EventKind, live_message
from colony.agent.in_hand import RunInHand
from colony.body import Body
from colony.budget import SharedBudget
from colony.envelope import Envelope, digest, iteration_of, session_of
from colony.errors import ColonyError, Fenced
from colony.host import Budget, Limits, Tables
from colony.keys import Keys
from colony.link import Link
from colony.live import LiveEvent
from colony.log import Logger, get_logger
from colony.lua.registry import Argument, Call, bind
from colony.requests import Recent, Requests
from colony.runs.reading import run_in_hand
from colony.schema import Schema
from colony.shelf import Shelf
from colony.store.tables import StoreTables
from colony.topology.model import CellSpec, ToolDeclaration
from colony.traces import write_output

# What follows along may be lost; what is followed must not wait for it.
TELL_S = 1.0

# What the pieces of an answer are among the events of a run.
_OF_A_RUN: Mapping[str, EventKind] = {"text": "message.delta", "reasoning": "reasoning.delta"}


Announce = Callable[[Sequence[ToolDeclaration]], Awaitable[None]]


class LiveHost:
    """The host of one handle: one cell, one envelope, one server.

    What is asked over a connection to another server than the delivery came from is refused with
    ServerChanged, so that no answer of a lost server is ever acted on.
    """

    def __init__(
        self,
        *,
        link: Link,
        keys: Keys,
        spec: CellSpec,
        directory: Path | None,
        tools: Sequence[ToolDeclaration],
        envelope: Envelope | None,
        server: str | None,
        announce: Announce | None = None,
        recent: Recent | None = None,
    ) -> None:
        self.spec = spec
        self.directory = directory
        self.tools = tools
        self.kept: list[bytes] = []
        self.shelved: list[str] = []
        self._link = link
        self._keys = keys
        self._envelope = envelope
        self._server = server
        self._announce = announce
        self._recent = recent
        self.run_in_hand: RunInHand | None = None

    @property
    def log(self) -> Logger:
        """A logger that names the trace and the cell."""
        trace = self._envelope.trace_id if self._envelope else None
        return get_logger("colony.cell", cell=self.spec.path, trace=trace)

    def tables(self, schema: Schema) -> Tables:
        """The tables of this cell, as this envelope sees them."""
        envelope = self._in_hand()
        return StoreTables(
            self._link,
            self._keys,
            path=self.spec.path,
            schema=schema,
            trace_id=envelope.trace_id,
            envelope_id=envelope.id,
            server=self._server,
        )

    def budget(self, name: str, limits: Limits) -> Budget:
        """The budget that all workers of this colony share under `name`."""
        return SharedBudget(self._link, self._keys.budget(name), limits, self.log)

    async def run(self) -> RunInHand | None:
        """The run of the envelope in hand, read when it is first asked for."""
        envelope = self._in_hand()
        if envelope.session and self.run_in_hand is None:
            self.run_in_hand = await run_in_hand(
                self._link,
                self._keys,
                run_id=envelope.trace_id,
                session_id=envelope.session,
                tools=self.tools,
                decided="decided" in envelope.hop,
                server=self._server,
            )
        return self.run_in_hand

    async def recall(self, name: str) -> bytes | None:
        """What an earlier handle of this envelope recorded under `name`."""
        envelope = self._in_hand()
        field = f"{envelope.id}:{name}"
        journal = self._keys.journal(envelope.trace_id)
        value = await self._link.command("HGET", journal, field, server=self._server)
        return None if value is None else bytes(value)

    async def record(self, name: str, value: bytes) -> bytes:
        """Keep the first value given to `name` by a handle of this envelope, and return it."""
        envelope = self._in_hand()
        answer = await self._run(
            bind(
                "record",
                trace=self._keys.trace(envelope.trace_id),
                journal=self._keys.journal(envelope.trace_id),
                field=f"{envelope.id}:{name}",
                value=value,
            )
        )
        return bytes(answer[1])

    async def show(self, name: str) -> None:
        """Record `name` for this envelope, and that something of its run is visible from now on."""
        envelope = self._in_hand()
        if not envelope.session:
            await self.record(name, b"")
            return
        await self._run(
            bind(
                "show_run",
                trace=self._keys.trace(envelope.trace_id),
                journal=self._keys.journal(envelope.trace_id),
                run=self._keys.run(envelope.trace_id),
                field=f"{envelope.id}:{name}",
            )
        )

    async def record_request(self, body: bytes, *, provider: str, model: str, attempt: int) -> None:
        """Keep what a model is sent with the trace, unless the trace or the server takes it not."""
        requests = Requests(self._link, self._keys, server=self._server, recent=self._recent)
        facts: dict[str, JsonValue] = {"provider": provider, "model": model, "attempt": attempt}
        try:
            await requests.record(body, envelope=self._in_hand(), cell=self.spec.path, facts=facts)
        except (ColonyError, RedisError) as error:
            self.log.warning("request_not_recorded", reason=str(error))

    async def state(self, scope: str) -> dict[str, str]:
        """The durable state of this cell in a scope, by leaf path."""
        key, _ = self._state_key(scope)
        leaves = await self._link.command("HGETALL", key, server=self._server)
        return _leaves(leaves)

    async def update_state(
        self, scope: str, put: Mapping[str, str], remove: Sequence[str]
    ) -> dict[str, str]:
        """Remove the leaves at or below `remove`, put those of `put`; returns what results."""
        key, lasting = self._state_key(scope)
        present = await self.state(scope) if remove else {}
        removed = [path for path in present if any(_at_or_below(path, r) for r in remove)]
        leaves: list[Argument] = [*removed]
        for path, text in put.items():
            leaves += [path, text]
        trace_id = self._in_hand().trace_id
        answer = await self._run(
            bind(
                "update_state",
                trace=self._keys.trace(trace_id),
                belongings=self._keys.belongings(trace_id),
                state=key,
                lasting=int(lasting),
                removed=len(removed),
                leaves=leaves,
            )
        )
        return _leaves(answer[1])

    async def tell(self, kind: str, **facts: JsonValue) -> None:
        """Publish a live event of the trace. A server that is away, slow or unwilling loses it."""
        channel, message = self._told(kind, facts)
        try:
            async with asyncio.timeout(TELL_S):
                await self._link.command("PUBLISH", channel, message)
        except (ColonyError, RedisError, TimeoutError) as error:
            self.log.debug("live_event_lost", kind=kind, reason=str(error))

    def keep(self, body: Body, hop: Mapping[str, JsonValue]) -> None:
        """Keep a message as an output of its trace, when this handle is committed."""
        self.kept.append(write_output(body, hop, self.spec.path))

    async def shelve(self, text: str) -> str:
        """The handle of a text that is kept whole, from the commit of this handle on."""
        handle, key = await self._shelf().put(text.encode(errors="replace"))
        self.shelved.append(key)
        return handle

    async def read_shelved(self, handle: str, *, offset: int, limit: int) -> tuple[bytes, int]:
        """A range of bytes of a text of this trace or session, and the size of all of it."""
        return await self._shelf().read(handle, offset=offset, limit=limit)

    async def announce(self, tools: Sequence[ToolDeclaration]) -> None:
        """The tools of this cell are these, wherever a model reaches it."""
        if self._announce is None:
            raise RuntimeError("a cell announces its tools by the host that it was started with")
        await self._announce(tools)

    def _shelf(self) -> Shelf:
        trace_id, session = self._in_hand().trace_id, self._session()
        return Shelf(
            self._link,
            self._keys,
            trace_id,
            session=digest(session) if session else "",
            server=self._server,
        )

    def _told(self, kind: str, facts: Mapping[str, JsonValue]) -> tuple[str, str | bytes]:
        """Where a live event goes, and as what: that of a run to whoever follows its session."""
        envelope = self._in_hand()
        if not envelope.session:
            event = LiveEvent(envelope.trace_id, self.spec.path, kind, facts)
            return self._keys.live(), json.dumps(event.to_json())
        turn = iteration_of(envelope.context)
        told = _OF_A_RUN.get(kind, "tool.progress")
        message = live_message(envelope.trace_id, told, turn, facts)
        return self._keys.session_live(envelope.session), message

    def _session(self) -> str:
        """The session of the envelope in hand, or empty."""
        return session_of(self._in_hand().context)

    def _in_hand(self) -> Envelope:
        if self._envelope is None:
            raise RuntimeError("a cell asks for durable things while it handles an envelope")
        return self._envelope

    def _state_key(self, scope: str) -> tuple[str, bool]:
        """The key of a scope's state, and whether it outlives the trace."""
        envelope = self._in_hand()
        session = self._session()
        if scope == "cell":
            return self._keys.state(self.spec.path, scope, "all"), True
        if scope == "session" and session:
            return self._keys.state(self.spec.path, scope, digest(session)), True
        return self._keys.state(self.spec.path, "trace", envelope.trace_id), False

    async def _run(self, call: Call) -> Any:
        answer = await self._link.run(call, server=self._server)
        if answer[0] == b"fenced":
            raise Fenced(trace_id=self._in_hand().trace_id)
        return answer


def _leaves(flat: Sequence[bytes]) -> dict[str, str]:
    return {p.decode(): t.decode() for p, t in zip(flat[::2], flat[1::2], strict=True)}


def _at_or_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root + ".")
