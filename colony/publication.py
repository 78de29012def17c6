"""Publication: how a topology gets into Redis, and how every process follows the newest one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pydantic import ValidationError

from colony.announcements import withdraw
from colony.body import explain
from colony.errors import ServerUnavailable, TopologyConflict, TopologyError
from colony.inbox import make_groups
from colony.keys import Keys
from colony.link import Link
from colony.log import Outage, get_logger
from colony.lua.registry import bind
from colony.topology.model import Topology, TopologySpec, parse_spec

POLL_S: Final = 0.5

log = get_logger("colony.publication")

Follower = Callable[[Topology], Awaitable[None]]


class Publication:
    """The topology of one partition as this process knows it."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys
        self.current = Topology.compile(TopologySpec())
        self._followers: list[Follower] = []
        self._refreshing = asyncio.Lock()

    async def publish(self, spec: TopologySpec, *, expected: int | None = None) -> int:
        """Make `spec` the newest version and return its number.

        Publishing what is published already changes nothing. With `expected`, raises
        TopologyConflict unless that is the newest version. The streams of all cells have their
        consumer groups before the version is out.
        """
        if expected is None:
            expected = await self._version()
        paths = [self.keys.cell(cell.path) for cell in spec.cells]
        await make_groups(self.link, [self.keys.router(), self.keys.quiet(), *paths])
        if spec.cells:
            # Remembered for ever: what waits at a cell that is gone has to be found.
            await self.link.command("SADD", self.keys.cells(), *(cell.path for cell in spec.cells))
        answer = await self.link.run(
            bind(
                "publish_topology",
                topology=self.keys.topology(),
                expected=expected,
                digest=spec.digest(),
                document=spec.model_dump_json(by_alias=True, exclude_defaults=True),
            )
        )
        if answer[0] == b"conflict":
            raise TopologyConflict(expected=expected, found=answer[1])
        await withdraw(self.link, self.keys, {cell.path for cell in spec.cells})
        return int(answer[1])

    async def refresh(self) -> bool:
        """Take up the newest version, and tell whether it is a new one.

        Raises TopologyError where this process cannot read it, and keeps the one it has.
        """
        # Two at once could take up the older one last.
        async with self._refreshing:
            if await self._version() == self.current.version:
                return False
            version, document = await self.link.command(
                "HMGET", self.keys.topology(), "version", "document"
            )
            if version is None:
                return False
            topology = _compile(document, int(version))
            for follower in self._followers:
                await follower(topology)
            self.current = topology
            return True

    def follow(self, follower: Follower) -> None:
        """Call `follower` with each new version before it is routed by."""
        self._followers.append(follower)

    async def watch(self) -> None:
        """Take up each newest version until cancelled; one that cannot be read is passed over."""
        told = ""
        while True:
            try:
                if await self.refresh():
                    log.info("topology", version=self.current.version, digest=self.current.digest)
                Outage.answered(log)
            except ServerUnavailable as error:
                Outage.report(log, error)
            except TopologyError as error:
                if str(error) != told:
                    told = str(error)
                    log.error("topology_unreadable", serving=self.current.version, detail=told)
            await asyncio.sleep(POLL_S)

    async def cell_streams(self) -> list[str]:
        """The stream of every cell that was ever published, of those that are gone as well."""
        known = await self.link.command("SMEMBERS", self.keys.cells())
        paths = {path.decode() for path in known} | self.current.cells.keys()
        return [self.keys.cell(path) for path in sorted(paths)]

    async def _version(self) -> int:
        return int(await self.link.command("HGET", self.keys.topology(), "version") or 0)


def _compile(document: bytes, version: int) -> Topology:
    try:
        return Topology.compile(parse_spec(document), version)
    except ValidationError as error:
        # Published by a newer colony, most likely: this process needs an update.
        raise TopologyError(detail=f"version {version}: {explain(error)}") from None
