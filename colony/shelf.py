"""The shelf: texts too long for a message, kept whole with their trace and read in ranges.

A text is written with a short expiry before the commit of the handle that made it; the commit takes
the expiry off. A handle names the trace; it is of use to that trace, and to the others of the
session that the text was kept for.
"""

from dataclasses import dataclass
from typing import Final

from colony.blobs import UNREFERENCED_MS
from colony.errors import NotFound
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind
from colony.results import handle_of, read_handle

# What is longer is written piece by piece: Redis answers others in between.
PIECE_BYTES: Final = 1 << 20

_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Shelf:
    """What one trace may keep and read; `session` is the digest of its session, or empty."""

    link: Link
    keys: Keys
    trace_id: str
    session: str
    server: str | None

    async def put(self, data: bytes) -> tuple[str, str]:
        """The handle of `data`, and the key to keep from the next commit of its trace on.

        The same bytes have the same handle, and are kept once.
        """
        handle = handle_of(data, self.trace_id)
        key = self._key(handle)
        # What was written expires where a server was away for long between two pieces.
        while not await self._write(key, data):
            pass
        return handle, key

    async def read(self, handle: str, *, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes from `offset` on, and how many there are in all.

        Raises NotFound where there is no such text, or none that this trace may read: nobody learns
        which.
        """
        key = self._key(handle)
        size = int(await self.link.command("STRLEN", key, server=self.server))
        if not size:
            raise not_kept(handle)
        if offset >= size:
            # The server takes no number of more than 64 bits.
            return b"", size
        last = min(offset + limit, size) - 1
        data = await self.link.command("GETRANGE", key, offset, last, server=self.server)
        return bytes(data), size

    def _key(self, handle: str) -> str:
        named = read_handle(handle)
        if named is None:
            raise not_kept(handle)
        text, trace_id = named
        if trace_id != self.trace_id and not self.session:
            raise not_kept(handle)
        return self.keys.shelved(trace_id, self.session, text)

    async def _write(self, key: str, data: bytes) -> bool:
        for start in range(0, max(len(data), 1), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            call = bind("keep_blob", blob=key, content=piece, keep_ms=UNREFERENCED_MS, offset=start)
            answer = await self.link.run(call, server=self.server)
            if answer[0] == b"gone":
                return False
        return True


def not_kept(handle: str) -> NotFound:
    """What is said of a handle that nothing can be read by, whatever the reason."""
    return NotFound(what=f"text kept as {handle[:_SHOWN]} that this question may read")
