"""The work-horse: one entry of a cell's stream is read, handled and committed, as a worker would.

It runs in a process of its own that ends with it. What RQ learns of it is only how it ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic import JsonValue

from colony import faults
from colony.blobs import Blobs
from colony.cell import Cell
from colony.config import Config
from colony.desk import settle
from colony.envelope import Emission, Envelope, new_id
from colony.errors import CellError, JobFailed, ServerChanged, ServerUnavailable
from colony.hosting import LiveHost
from colony.inbox import read_entry
from colony.jobs.order import Order
from colony.jobs.place import Place
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.streams import Delivery, Step, Streams
from colony.topology.model import CellSpec
from colony.worker import WorkerDesk
from colony.workshop import Hosted, Origin, Workshop

RETRY_S: Final = 0.2

# Set by the job process before its first job; RQ calls a function by its name and tells it nothing.
here: Place | None = None

T = TypeVar("T")


def work(**told: JsonValue) -> str:
    """Do what an order says; returns in a word what came of it.

    An entry that is gone or of another server is left alone. What the cell gives or raises is
    committed; a cell that asks for another try leaves its entry where it is.
    """
    return asyncio.run(_Horse(Order.model_validate(told), here or Place.of(Config.load({}))).work())


class Stall(Workshop):
    """The one cell that a job needs; nothing is born here."""

    def origin_of(self, cell: Cell, spec: CellSpec, directory: Path | None) -> Origin | None:
        """None: the workers make the envelopes."""
        return None


class HorseDesk(WorkerDesk):
    """A desk at which a call that may change something is begun once."""

    def __init__(
        self, streams: Streams, keys: Keys, publication: Publication, workshop: Workshop
    ) -> None:
        super().__init__(streams, keys, publication, workshop)
        self.attempt = new_id()

    async def perform(
        self, hosted: Hosted, envelope: Envelope, host: LiveHost, delivery: Delivery
    ) -> Sequence[Emission]:
        """What the cell makes of the envelope; of a tool that changes something, at most once."""

        async def handle() -> Sequence[Emission]:
            return await super(HorseDesk, self).perform(hosted, envelope, host, delivery)

        if hosted.tool is None or hosted.tool.declaration.read_only:
            return await handle()
        return await self.begin_once(host, self.attempt, handle, delivery)


class _Horse:
    def __init__(self, order: Order, place: Place) -> None:
        if order.stream != place.keys.cell(order.path):
            raise JobFailed(detail=f"{order.stream} is no stream of {order.path} here")
        self.order = order
        self.place = place
        self.link = Link(place.url)
        self.streams = Streams(self.link, place.keys, Blobs(self.link, place.keys))
        self.publication = Publication(self.link, place.keys)
        self.publication.current = place.topology
        self.stall = Stall(
            self.link,
            place.keys,
            patterns=(order.path,),
            environment=place.environment,
            root=place.root,
        )
        self.desk = HorseDesk(self.streams, place.keys, self.publication, self.stall)

    async def work(self) -> str:
        try:
            return await self._work()
        except ServerChanged:
            return "abandoned"
        finally:
            await self.stall.close()
            await self.link.close()

    async def _work(self) -> str:
        delivery = await _surely(self._read)
        if delivery is None:
            return "settled"
        await _surely(self._host)
        try:
            step = await _surely(lambda: settle(self.desk, delivery))
        except CellError as error:
            return f"left: {error}"
        if faults.armed:
            await faults.reach("after_handle")
        return await _surely(lambda: self._commit(step))

    async def _read(self) -> Delivery | None:
        stream, entry, server = self.order.stream, self.order.entry, self.order.server
        found = await self.link.command("XRANGE", stream, entry, entry, server=server)
        if not found:
            return None
        read = read_entry(stream, found[0][0], server, found[0][1])
        return read if isinstance(read, Delivery) else None

    async def _host(self) -> None:
        await self.publication.refresh()
        topology = self.publication.current
        self.streams.blobs.inline_max_bytes = topology.settings.blob_inline_max_bytes
        self.streams.blobs.max_recursion = topology.settings.blob_max_recursion_depth
        await self.stall.follow(topology)
        # The desk knows streams by the cells there are.
        self.desk.sources()
        if self.order.path in self.stall.failed:
            raise JobFailed(detail=self.stall.failed[self.order.path])

    async def _commit(self, step: Step) -> str:
        return (await self.streams.commit([step]))[0].token


async def _surely(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, whenever the server gives one: a job that waits too long is killed."""
    while True:
        try:
            return await ask()
        except ServerUnavailable:
            await asyncio.sleep(RETRY_S)
