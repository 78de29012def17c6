"""Admission: how a message from outside becomes the first envelope of a trace."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from colony.access.fitness import Fitness
from colony.body import Body, check_nesting
from colony.envelope import Headers
from colony.errors import Backlogged, BodyError, EnvelopeError, GuardReused, TopologyMissing
from colony.keys import Keys
from colony.link import Link
from colony.paths import ROOT, resolve
from colony.pressure import Pressure
from colony.publication import Publication
from colony.traces import Birth, Traces


class Admission:
    """The way into one colony."""

    def __init__(self, link: Link, keys: Keys, publication: Publication) -> None:
        self.traces = Traces(link, keys)
        self._keys = keys
        self._publication = publication
        self._fitness = Fitness(link)
        self._pressure = Pressure(link, keys)

    async def admit(
        self,
        target: str,
        body: Body,
        *,
        context: Headers | None = None,
        hop: Headers | None = None,
        ttl: int | None = None,
        guard: str | None = None,
        trace_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Birth:
        """Open a trace with this message. Without `ttl` it gets the budget of the tree.

        A repeat under the same `guard` opens nothing and finds the trace; raises GuardReused where
        the guard belongs to another request, TopologyMissing where no tree was applied, Backlogged
        where too much waits for something new, ServerUnfit where the server might lose it. What a
        request leaves to the tree is no part of it. Without a `guard` the trace may be given an id
        that was made for it.
        """
        if not target:
            raise EnvelopeError(detail="the target is empty")
        try:
            check_nesting([context or {}, hop or {}])
        except BodyError as error:
            raise EnvelopeError(detail=f"the headers are {error}") from None
        publication = self._publication
        if publication.current.version == 0:
            await publication.refresh()
        # Another request may have taken the tree up meanwhile.
        if publication.current.version == 0:
            raise TopologyMissing(name=self._keys.name)
        await self._fitness.check()
        path, timeout_ms = resolve(target, ROOT), _milliseconds(timeout_s)
        async with self._room(guard):
            birth = await self.traces.birth(
                path,
                body,
                ttl=publication.current.settings.message_default_ttl if ttl is None else ttl,
                context=context,
                hop=hop,
                guard=guard,
                trace_id=trace_id,
                timeout_ms=timeout_ms,
                inline_max_bytes=publication.current.settings.blob_inline_max_bytes,
                guard_keep_ms=publication.current.settings.idempotency_retention_ms,
                request=[path, body.to_json(), context or {}, hop or {}, ttl, timeout_ms],
            )
        if birth.conflict:
            raise GuardReused(trace_id=birth.trace_id)
        return birth

    @asynccontextmanager
    async def _room(self, guard: str | None) -> AsyncIterator[None]:
        try:
            await self._pressure.admit_one(self._publication.current)
        except Backlogged:
            # A repeat adds nothing to what waits.
            if guard is None or not await self.traces.knows(guard):
                raise
            counted = False
        else:
            counted = True
        try:
            yield
        finally:
            if counted:
                self._pressure.arrived()


def _milliseconds(timeout_s: float | None) -> int:
    # 0 would be no timeout at all.
    return 0 if timeout_s is None else max(1, round(timeout_s * 1000))
