"""Roles: a router and a worker, each put together from its parts and served until it is stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from colony.blobs import Blobs
from colony.consumer import Consumer
from colony.desk import Desk
from colony.errors import ServerUnavailable, ServerUnfit, TopologyError
from colony.inbox import Inbox
from colony.jobs.desk import JobDesk
from colony.jobs.waiting import Jobs
from colony.keeping.keeper import RECLAIM_IDLE_MS, Keeper
from colony.keys import Keys
from colony.link import Link, check_server
from colony.log import Outage, get_logger
from colony.pace import Pace
from colony.publication import Publication
from colony.redaction import without_login
from colony.router import RouterDesk
from colony.sessions import Sessions
from colony.slots import Slots
from colony.streams import Streams
from colony.topology.model import CellSpec, Isolation, Topology
from colony.workshop import Workshop

RETRY_S: Final = 1.0
FIT_S: Final = 2.0
# What a worker leaves to other processes.
APART: Final[tuple[Isolation, ...]] = ("job",)

log = get_logger("colony.roles")


@dataclass
class Base:
    """What every role has: a link to write, links for blocking reads, the topology."""

    url: str
    keys: Keys
    pace: Pace = field(default_factory=Pace)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.link = self._link()
        self.blobs = Blobs(self.link, self.keys)
        self.streams = Streams(self.link, self.keys, self.blobs)
        self.publication = Publication(self.link, self.keys)
        self.publication.follow(self._settle_blobs)
        self._readers: list[Link] = []

    def stop(self) -> None:
        """Let `serve` come to an end."""
        self.stopping.set()

    async def connect(self) -> bool:
        """Wait for a server that can carry a colony; False where a stop comes first.

        Raises ServerUnfit on a server that cannot.
        """
        return await self._until_answered(lambda: check_server(self.link))

    async def begin(self, desk: Desk, slots: Slots) -> bool:
        """Take up the topology, then lease a slot; False where a stop comes first."""
        begun = await self._until_answered(self._refresh) and await self._until_answered(
            lambda: slots.lease(desk.about())
        )
        if begun:
            log.info(
                "serving",
                role=slots.role,
                slot=slots.slot,
                colony=self.keys.name,
                server=without_login(self.url),
                version=self.publication.current.version,
                cells=len(desk.sources() if slots.role == "worker" else self._cells()),
            )
        return begun

    async def watch(self) -> None:
        """Take up each newest topology, and tell where the server is unfit, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.publication.watch())
            group.create_task(self._watch_server())

    async def _watch_server(self) -> None:
        # Its settings can be changed while it runs, and after a failover it is another one.
        told = ""
        while True:
            await asyncio.sleep(FIT_S)
            with suppress(ServerUnavailable):
                try:
                    await check_server(self.link)
                    if told:
                        told = ""
                        log.info("server_fit")
                except ServerUnfit as error:
                    if str(error) != told:
                        told = str(error)
                        log.error("server_unfit", detail=told)

    def _cells(self) -> Mapping[str, CellSpec]:
        return self.publication.current.cells

    async def _refresh(self) -> None:
        try:
            await self.publication.refresh()
        except TopologyError as error:
            # Nothing is served until one is published that can be read.
            log.error("topology_unreadable", detail=str(error))

    async def _until_answered(self, ask: Callable[[], Awaitable[object]]) -> bool:
        while not self.stopping.is_set():
            try:
                await ask()
                return True
            except ServerUnavailable as error:
                Outage.report(log, error)
                await asyncio.sleep(RETRY_S)
        return False

    def reader(self) -> Link:
        """A link of its own for reads that wait."""
        link = self._link()
        self._readers.append(link)
        return link

    def _link(self) -> Link:
        return Link(self.url, silence_s=self.pace.silence_ms / 1000)

    async def close(self) -> None:
        """Close every link."""
        for link in (*self._readers, self.link):
            await link.close()

    async def consume(self, desk: Desk, slots: Slots) -> None:
        """Serve a desk under a slot that was leased until stopped."""
        inbox = Inbox(self.link, slots.consumer, reader=self.reader())
        consumer = Consumer(desk, inbox, self.streams, slots, pace=self.pace)

        async def tell(_: Topology) -> None:
            consumer.changed()

        self.publication.follow(tell)
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
        desk = RouterDesk(self.keys, self.publication, Sessions(self.link, self.keys))
        slots = Slots(self.link, self.keys, "router", lease_ms=self.pace.claim_idle_ms)
        keeper = Keeper(
            self.streams,
            self.publication,
            reclaim_idle_ms=min(RECLAIM_IDLE_MS, self.pace.claim_idle_ms),
        )
        try:
            if await self.connect() and await self.begin(desk, slots):
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self.watch())
                    keeping = group.create_task(keeper.run(self.reader(), slots.consumer))
                    await self.consume(desk, slots)
                    watching.cancel()
                    keeping.cancel()
        finally:
            await self.close()


@dataclass
class Worker(Base):
    """A worker that hosts the cells whose path matches one of `patterns`.

    Those of isolation `job` it hands to job processes, over the RQ at `rq_url`, by default the
    server of the colony.
    """

    patterns: tuple[str, ...] = ("*",)
    environment: Mapping[str, str] | None = None
    root: Path | None = None
    rq_url: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.jobs = Jobs(self.rq_url or self.url, self.keys)
        self.workshop = Workshop(
            self.link,
            self.keys,
            patterns=self.patterns,
            environment=self.environment,
            root=self.root,
            apart=APART,
        )

    async def serve(self) -> None:
        """Host cells until stopped."""
        self.publication.follow(self.workshop.follow)
        desk = JobDesk(self.streams, self.keys, self.publication, self.workshop, self.jobs)
        slots = Slots(self.link, self.keys, "worker", lease_ms=self.pace.claim_idle_ms)
        try:
            if await self.connect() and await self.begin(desk, slots):
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self.watch())
                    offering = group.create_task(self.workshop.watch())
                    await self.consume(desk, slots)
                    watching.cancel()
                    offering.cancel()
        finally:
            await self.workshop.close()
            await self.jobs.close()
            await self.close()
