"""The shelf: results too long for a message, kept whole with their trace and read in ranges.

A text is written with a short expiry before the commit of the handle that made it; the commit takes
the expiry off. A handle names it within its own trace only.
"""

from colony.blobs import UNREFERENCED_MS
from colony.errors import NotFound
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind
from colony.results import handle_of


class Shelf:
    """The long results of one trace."""

    def __init__(self, link: Link, keys: Keys, trace_id: str, *, server: str | None) -> None:
        self._link = link
        self._keys = keys
        self._trace_id = trace_id
        self._server = server

    def key(self, handle: str) -> str:
        """Where the text of a handle is kept."""
        return self._keys.shelved(self._trace_id, handle)

    async def put(self, data: bytes) -> str:
        """The handle of `data`, which is kept from the next commit of its trace on.

        The same bytes have the same handle, and are kept once.
        """
        handle = handle_of(data)
        call = bind("keep_blob", blob=self.key(handle), content=data, keep_ms=UNREFERENCED_MS)
        await self._link.run(call, server=self._server)
        return handle

    async def read(self, handle: str, *, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes from `offset` on, and how many there are in all.

        Raises NotFound where the trace has no such text.
        """
        key = self.key(handle)
        size = int(await self._link.command("STRLEN", key, server=self._server))
        if not size:
            raise NotFound(what=f"text {handle} in this question")
        if offset >= size:
            # The server takes no number of more than 64 bits.
            return b"", size
        last = min(offset + limit, size) - 1
        data = await self._link.command("GETRANGE", key, offset, last, server=self._server)
        return bytes(data), size
