"""Roles: a router and a worker, each put together from its parts and served until it is stopped."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from colony.blobs import Blobs
from colony.consumer import Consumer, Pace
from colony.desk import Desk
from colony.errors import ServerUnavailable
from colony.inbox import Inbox
from colony.keeper import Keeper
from colony.keys import Keys
from colony.link import Link, check_server
from colony.log import get_logger
from colony.publication import Publication
from colony.router import RouterDesk
from colony.slots import Slots
from colony.streams import Streams
from colony.topology.model import Topology
from colony.worker import WorkerDesk
from colony.workshop import Workshop

log = get_logger("colony.roles")


@dataclass
class Base:
    """What every role has: a link to write, links for blocking reads, the topology."""

    url: str
    keys: Keys
    pace: Pace = field(default_factory=Pace)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.link = Link(self.url)
        self.blobs = Blobs(self.link, self.keys)
        self.streams = Streams(self.link, self.keys, self.blobs)
        self.publication = Publication(self.link, self.keys)
        self.publication.follow(self._settle_blobs)
        self._readers: list[Link] = []

    def stop(self) -> None:
        """Let `serve` come to an end."""
        self.stopping.set()

    async def connect(self) -> None:
        """Wait for a server that can carry a colony; raises ServerUnfit on one that cannot."""
        while not self.stopping.is_set():
            try:
                await check_server(self.link)
                return
            except ServerUnavailable as error:
                log.error("server_unavailable", detail=str(error))
                await asyncio.sleep(1.0)

    def reader(self) -> Link:
        """A link of its own for reads that wait."""
        link = Link(self.url)
        self._readers.append(link)
        return link

    async def close(self) -> None:
        """Close every link."""
        for link in (*self._readers, self.link):
            await link.close()

    async def consume(self, desk: Desk, slots: Slots) -> None:
        """Serve a desk under a slot until stopped."""
        await slots.lease(desk.about())
        inbox = Inbox(self.reader(), slots.consumer)
        consumer = Consumer(desk, inbox, self.streams, slots, pace=self.pace)
        await consumer.take_up(desk.sources())
        stopping = asyncio.create_task(self._stop(consumer))
        try:
            await consumer.run()
            with suppress(ServerUnavailable):
                await slots.release()
        finally:
            stopping.cancel()

    async def _stop(self, consumer: Consumer) -> None:
        await self.stopping.wait()
        consumer.stop()

    async def _settle_blobs(self, topology: Topology) -> None:
        self.blobs.inline_max_bytes = topology.settings.blob_inline_max_bytes
        self.blobs.max_recursion = topology.settings.blob_max_recursion_depth


class Router(Base):
    """A router with its keeper."""

    async def serve(self) -> None:
        """Route until stopped."""
        await self.connect()
        desk = RouterDesk(self.keys, self.publication)
        slots = Slots(self.link, self.keys, "router")
        await slots.lease(desk.about())
        keeper = Keeper(self.link, self.keys, self.publication)
        await self.publication.refresh()
        aside = [
            asyncio.create_task(self.publication.watch()),
            asyncio.create_task(keeper.run(self.reader(), slots.consumer)),
        ]
        try:
            await self.consume(desk, slots)
        finally:
            await _cancel(aside)
            await self.close()


@dataclass
class Worker(Base):
    """A worker that hosts the cells whose path matches one of `patterns`."""

    patterns: tuple[str, ...] = ("*",)
    environment: Mapping[str, str] | None = None
    root: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.workshop = Workshop(
            self.link,
            self.keys,
            patterns=self.patterns,
            environment=self.environment,
            root=self.root,
        )

    async def serve(self) -> None:
        """Host cells until stopped."""
        await self.connect()
        self.publication.follow(self.workshop.follow)
        await self.publication.refresh()
        watching = asyncio.create_task(self.publication.watch())
        desk = WorkerDesk(self.streams, self.keys, self.publication, self.workshop)
        try:
            await self.consume(desk, Slots(self.link, self.keys, "worker"))
        finally:
            await _cancel([watching])
            await self.workshop.close()
            await self.close()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
