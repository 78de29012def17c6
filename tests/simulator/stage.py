"""The stage: a server, links to it and started trees, used by one world after the other."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.host import Host
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.redis_server import RedisServer
from colony.workshop import Hosted
from tests.simulator.conductor import Conductor, SteppedLink, Tampering, Witness
from tests.simulator.tree import Tree

LINKS = 12


class Audience(Protocol):
    """Whoever is told of each handle."""

    def saw_handle(self, path: str, trace_id: str) -> None:
        """A cell handles an envelope."""


class Stage:
    """What takes long to make, and is the same for every seed. Use as an async context manager."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.keys = Keys("sim")
        self.link = Link(server.url)
        self.audience: Audience | None = None
        self._links = [SteppedLink(server.url) for _ in range(LINKS)]
        self._trees: dict[bool, tuple[Tree, dict[str, Hosted]]] = {}

    async def __aenter__(self) -> Self:
        for mends in (True, False):
            tree = self.grow(mends=mends)
            hosted = await tree.staff(self.link, self.keys)
            for path, cell in hosted.items():
                self._watch(path, cell.cell)
            self._trees[mends] = (tree, hosted)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for link in (self.link, *self._links):
            await link.close()

    def grow(self, *, mends: bool) -> Tree:
        """A tree to play with."""
        return Tree.grow(mends=mends)

    def tree(self, tampering: Tampering) -> Tree:
        """The tree of a world."""
        return self._trees[tampering.mends][0]

    def hosted(self, tampering: Tampering) -> dict[str, Hosted]:
        """The cells of a world."""
        return self._trees[tampering.mends][1]

    def links(
        self, conductor: Conductor, tampering: Tampering, witness: Witness
    ) -> Iterator[SteppedLink]:
        """Links for the actors of a world."""
        for link in self._links:
            link.join(conductor, tampering, witness)
        return iter(self._links)

    async def clear(self, tampering: Tampering) -> None:
        """An empty server with the tree published."""
        await self.link.command("FLUSHALL")
        await Publication(self.link, self.keys).publish(self.tree(tampering).spec)

    def log_size(self) -> tuple[str, int]:
        """The part of the append-only file that is written to, and its size."""
        path = self.server.aof
        return path.name, path.stat().st_size

    async def restart(self, cut: int) -> None:
        """Kill the server, take the end off its log, and start it again.

        All links find out at once: which one finds out when would not be the seed's choice.
        """
        self.server.kill()
        for link in (self.link, *self._links):
            await link.drop("the server was killed")
        self.server.cut_aof(cut)
        self.server.restart()

    def _watch(self, path: str, cell: Cell) -> None:
        handle: Any = cell.handle

        async def watched(envelope: Envelope, host: Host) -> Sequence[Emission]:
            if self.audience is not None:
                self.audience.saw_handle(path, envelope.trace_id)
            made: Sequence[Emission] = await handle(envelope, host)
            return made

        cell.handle = watched  # type: ignore[method-assign]
