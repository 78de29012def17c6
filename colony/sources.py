"""Sources: what a cell may ask that makes envelopes of its own, answered by Redis.

A birth and the mark it reaches are one script, so what was born is never born again, whoever tries;
which process leads only decides who asks the outside world.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from redis.exceptions import ResponseError

from colony.blobs import Blobs
from colony.cell import Cell
from colony.codec import encode_body, encode_head
from colony.envelope import Emission, Head, Headers, derived_id, digest, new_id
from colony.errors import Backlogged, BlobUnavailable, GuardReused, ServerUnavailable
from colony.host import Mark
from colony.keys import Keys
from colony.link import Link
from colony.log import Logger, Outage, get_logger
from colony.lua.registry import bind
from colony.pressure import Pressure
from colony.topology.model import CellSpec, Topology
from colony.traces import Traces

RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0
# A lease is renewed so often while it lasts.
RENEWALS: Final = 3


class LiveSource:
    """The source of one cell in this process, by the newest topology that `topology` gives."""

    def __init__(
        self,
        *,
        link: Link,
        keys: Keys,
        spec: CellSpec,
        directory: Path | None,
        topology: Callable[[], Topology],
    ) -> None:
        self.spec = spec
        self.directory = directory
        self.log: Logger = get_logger("colony.cell", cell=spec.path)
        self._link = link
        self._keys = keys
        self._topology = topology
        self._traces = Traces(link, keys)
        self._pressure = Pressure(link, keys)
        self._token = new_id()
        self._leading = False
        self._renewing: asyncio.Task[None] | None = None

    async def clock(self) -> int:
        """Milliseconds since the epoch, by the clock of the server."""
        seconds, micros = await self._link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def lead(self, lease_ms: int) -> bool:
        """Whether this process holds the source; from then on the lease is renewed."""
        if not self._leading and await self._lease(lease_ms):
            self._leading = True
            self._renewing = asyncio.create_task(self._renew(lease_ms))
        return self._leading

    async def mark(self, name: str = "") -> Mark:
        """How far the source has come under `name`."""
        fields = f"mark:{name}", f"births:{name}"
        reached, births = await self._link.command("HMGET", self._marks, *fields)
        return Mark(-1 if reached is None else int(reached), int(births or 0))

    async def raise_mark(self, mark: int, *, name: str = "", after: int | None = None) -> bool:
        """Reach `mark` with nothing born; False where it was reached before."""
        call = bind("raise_mark", marks=self._marks, name=name, mark=mark, after=_text(after))
        answer = await self._link.run(call)
        return bool(answer[0] == b"raised")

    async def birth(
        self,
        emission: Emission,
        *,
        mark: int,
        name: str = "",
        after: int | None = None,
        session: str = "",
    ) -> bool:
        """Reach `mark` with this birth, both or neither; False where it was reached before.

        Waits while too much waits in the colony.
        """
        path = self.spec.path
        born = derived_id("source", path, name, mark)
        settings = self._topology().settings
        head = Head(
            id=born,
            trace_id=born,
            target=None,
            sender=path,
            ttl=settings.message_default_ttl,
            context=_within(session),
            hop=emission.hop,
        )
        encoded = encode_head(head), encode_body(emission.body)
        await self._room()
        try:
            return await self._born(encoded, born, mark, name, after, session)
        finally:
            self._pressure.arrived()

    async def forget_mark(self, name: str) -> None:
        """Forget how far the source has come under `name`."""
        await self._link.command("HDEL", self._marks, f"mark:{name}", f"births:{name}")

    async def admit(self, emission: Emission, *, guard: str, session: str = "") -> str:
        """The trace that opened with this birth, once for each `guard` and emission."""
        path, settings = self.spec.path, self._topology().settings
        await self._pressure.admit_one(self._topology())
        try:
            birth = await self._traces.birth(
                None,
                emission.body,
                ttl=settings.message_default_ttl,
                sender=path,
                context=_within(session),
                hop=emission.hop,
                guard=f"{path} {guard}",
                inline_max_bytes=settings.blob_inline_max_bytes,
                guard_keep_ms=settings.idempotency_retention_ms,
                request=[emission.body.to_json(), emission.hop],
            )
        finally:
            self._pressure.arrived()
        if birth.conflict:
            raise GuardReused(trace_id=birth.trace_id)
        return birth.trace_id

    async def state(self) -> dict[str, str]:
        """The durable state of the cell, by leaf path."""
        flat = await self._link.command("HGETALL", self._state)
        return {p.decode(): t.decode() for p, t in zip(flat[::2], flat[1::2], strict=True)}

    async def put_state(self, leaves: Mapping[str, str]) -> None:
        """Put leaves into the state."""
        flat = [part for leaf in leaves.items() for part in leaf]
        if flat:
            await self._link.command("HSET", self._state, *flat)

    async def remove_state(self, paths: Sequence[str]) -> None:
        """Remove leaves from the state."""
        if paths:
            await self._link.command("HDEL", self._state, *paths)

    async def close(self) -> None:
        """Give the source back where it is held."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._leading:
            self._leading = False
            # A server that is away forgets by itself.
            with suppress(ServerUnavailable):
                await self._link.run(
                    bind(
                        "release_source", lease=self._keys.lease(self.spec.path), token=self._token
                    )
                )

    @property
    def _marks(self) -> str:
        return self._keys.marks(self.spec.path)

    @property
    def _state(self) -> str:
        return self._keys.state(self.spec.path, "cell", "all")

    async def _lease(self, lease_ms: int) -> bool:
        lease = self._keys.lease(self.spec.path)
        call = bind("lease_source", lease=lease, token=self._token, lease_ms=lease_ms)
        answer = await self._link.run(call)
        return bool(answer[0] == b"held")

    async def _renew(self, lease_ms: int) -> None:
        try:
            while True:
                await asyncio.sleep(lease_ms / 1000 / RENEWALS)
                if not await self._lease(lease_ms):
                    break
        except (ServerUnavailable, ResponseError) as error:
            # The lease may have come to its end meanwhile; whoever leads asks again.
            self.log.warning("lease_not_renewed", detail=str(error))
        finally:
            self._leading = False

    async def _room(self) -> None:
        told = False
        while True:
            try:
                return await self._pressure.admit_one(self._topology())
            except Backlogged as error:
                if not told:
                    self.log.warning("source_held_back", detail=str(error))
                    told = True
            await asyncio.sleep(RETRY_S)

    async def _born(
        self,
        encoded: tuple[bytes, bytes],
        born: str,
        mark: int,
        name: str,
        after: int | None,
        session: str,
    ) -> bool:
        keys, settings = self._keys, self._topology().settings
        blobs = Blobs(self._link, keys, inline_max_bytes=settings.blob_inline_max_bytes)
        travelling, blob = await blobs.admit(encoded[1], born)
        answer = await self._link.run(
            bind(
                "birth_marked",
                marks=self._marks,
                trace=keys.trace(born),
                open=keys.open_traces(),
                stream=keys.router(),
                belongings=keys.belongings(born),
                order=keys.order(digest(session)),
                blobs=[] if blob is None else [keys.blob(blob)],
                name=name,
                mark=mark,
                after=_text(after),
                trace_id=born,
                head=encoded[0],
                body=travelling,
                entry=self.spec.path,
                session=session,
            )
        )
        if answer[0] == b"blob_lost":
            raise BlobUnavailable(blob_id=blob)
        return bool(answer[0] == b"born")


async def drive(cell: Cell, source: LiveSource) -> None:
    """Let a cell make its envelopes until it has no more to make; again where it fails, later each
    time."""
    clock = asyncio.get_running_loop().time
    pause_s = RETRY_S
    while True:
        began = clock()
        try:
            await cell.run(source)
            return
        except ServerUnavailable as error:
            Outage.report(source.log, error)
            await asyncio.sleep(RETRY_S)
            continue
        except Exception as error:  # A cell of the user's may raise anything; it is run again.
            detail = f"{type(error).__name__}: {error}"
            source.log.error("source_failed", detail=detail, exc_info=error)
        if clock() - began > MAX_RETRY_S:
            pause_s = RETRY_S
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, MAX_RETRY_S)


def _within(session: str) -> Headers:
    return {"session_id": session} if session else {}


def _text(after: int | None) -> str:
    return "" if after is None else str(after)
