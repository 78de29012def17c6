"""The place of a job process: its colony, the tree on this host, and the topology it knows."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from colony.cell import cell_type
from colony.config import Config
from colony.embedded import url_in
from colony.errors import ColonyError, ServerMissing
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.topology.model import Topology, TopologySpec


@dataclass
class Place:
    """What every job of a process finds: known before the first, and the same for all."""

    url: str
    keys: Keys
    environment: Mapping[str, str]
    root: Path | None = None
    topology: Topology = field(default_factory=lambda: Topology.compile(TopologySpec()))

    @classmethod
    def of(cls, config: Config) -> Self:
        """The place that the settings name; raises ServerMissing where they name no server."""
        url = config.redis or url_in(config.home)
        if url is None:
            raise ServerMissing(detail=f"no server runs for the colony {config.name!r}")
        return cls(url, Keys(config.name), os.environ)

    def learn(self, version: int) -> None:
        """Read the newest topology ahead of the job, where the one that is known is not `version`,
        and import the types of its cells.

        What cannot be had now the job tries again, and says why.
        """
        if self.topology.version == version:
            return
        with suppress(ColonyError):
            self.topology = asyncio.run(self._newest())
        for cell in self.topology.cells.values():
            if cell.cell.isolation == "job":
                with suppress(Exception):  # A module may raise anything when it is imported.
                    cell_type(cell.cell.type)

    async def _newest(self) -> Topology:
        link = Link(self.url)
        try:
            publication = Publication(link, self.keys)
            await publication.refresh()
            return publication.current
        finally:
            await link.close()
