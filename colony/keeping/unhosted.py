"""Unhosted: what waits at cells that no worker hosts is reported, and in the end given up."""

from collections import deque
from typing import Final

from colony.desk import letter_of
from colony.inbox import read_entry
from colony.log import get_logger
from colony.publication import Publication
from colony.slots import holders
from colony.streams import MAX_BATCH, Broken, Step, Streams, next_batch

LOOK_S: Final = 5.0
# Who did not look for so long does not know what happened meanwhile.
BLIND_MS: Final = 30_000

log = get_logger("colony.unhosted")


class Unhosted:
    """The cells without a host, and since when by the server's clock. Any number may look."""

    def __init__(self, streams: Streams, publication: Publication) -> None:
        self.streams = streams
        self.publication = publication
        self._since: dict[str, int] = {}
        self._looked = 0
        self._reported: set[str] = set()

    async def look(self) -> dict[str, int]:
        """Report each cell whose entries nobody hosted for `unhosted_after_ms`, and dead-letter
        those that nobody hosted for its message timeout more; returns their number by cell."""
        now = await self._now()
        hosted = await self._hosted()
        since = self._since if now - self._looked < BLIND_MS else {}
        known = await self.streams.link.command("SMEMBERS", self.streams.keys.cells())
        paths = {path.decode() for path in known} - hosted
        self._since = {path: since.get(path, now) for path in paths}
        self._looked = now
        self._reported &= paths
        buried = {path: await self._attend(path, now) for path in sorted(paths)}
        return {path: count for path, count in buried.items() if count}

    async def _attend(self, path: str, now: int) -> int:
        topology = self.publication.current
        unhosted_ms = now - self._since[path]
        patience_ms = topology.settings.unhosted_after_ms
        if unhosted_ms < patience_ms:
            return 0
        if path not in self._reported and await self._page(path, now - patience_ms):
            self._reported.add(path)
            log.error("cell_unhosted", cell=path, waiting=await self._backlog(path))
        limit_ms = patience_ms + topology.message_timeout_ms(path)
        count = 0
        while unhosted_ms >= limit_ms and (page := await self._page(path, now - limit_ms)):
            await self._bury(path, page)
            count += len(page)
        return count

    async def _page(self, path: str, until: int) -> list[tuple[bytes, list[bytes]]]:
        # The id of an entry tells when it came.
        stream = self.streams.keys.cell(path)
        page: list[tuple[bytes, list[bytes]]] = await self.streams.link.command(
            "XRANGE", stream, "-", until, "COUNT", MAX_BATCH
        )
        return page

    async def _bury(self, path: str, page: list[tuple[bytes, list[bytes]]]) -> None:
        source, server = self.streams.keys.cell(path), await self.streams.link.open()
        detail = "no worker hosts the cell"
        steps: deque[Step] = deque()
        for entry, fields in page:
            read = read_entry(source, entry, server, fields, times=0)
            if isinstance(read, Broken):
                await self.streams.bury(read, target=path)
                continue
            head = read.head
            log.error("cell_inactive", cell=path, trace=head.trace_id, message=head.id)
            steps.append(Step(read, letters=[letter_of(read, path, "cell_inactive", detail)]))
        while steps:
            await self.streams.commit(next_batch(steps))

    async def _backlog(self, path: str) -> int:
        return int(await self.streams.link.command("XLEN", self.streams.keys.cell(path)))

    async def _hosted(self) -> set[str]:
        told = [h.about for h in await holders(self.streams.link, self.streams.keys, "worker")]
        lists = [cells for about in told if isinstance(cells := about.get("cells"), list)]
        return {path for cells in lists for path in cells if isinstance(path, str)}

    async def _now(self) -> int:
        seconds, micros = await self.streams.link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000
