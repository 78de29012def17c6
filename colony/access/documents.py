"""Documents: the long results that traces keep whole, read by an operator.

A cell reads those of its trace and of its session. Who has access to the colony reads any, by its
handle, as long as the trace that made it is kept.
"""

from dataclasses import dataclass
from typing import Final

from colony.errors import DocumentNotFound
from colony.keys import Keys
from colony.link import Link
from colony.results import read_handle

PIECE_BYTES: Final = 1024 * 1024
_SHOWN: Final = 100
_PAGE: Final = 1_000
# What the server takes for any text in a pattern; ids of texts and traces hold no such character.
_ANY_SESSION: Final = "*"


@dataclass(frozen=True, slots=True)
class Document:
    """A text that is kept whole, and how many bytes it has."""

    handle: str
    key: str
    size: int


class Documents:
    """The documents of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def find(self, handle: str) -> Document:
        """The document of a handle; raises DocumentNotFound where none is kept under it."""
        named = read_handle(handle)
        if named is None:
            raise DocumentNotFound(
                handle=handle[:_SHOWN],
                detail="the handle is malformed, one is blob:DIGEST@TRACE, as a result ends",
            )
        text_id, trace_id = named
        for key in await self._belonging(trace_id, text_id):
            size = int(await self._link.command("STRLEN", key))
            if size:
                return Document(handle, key, size)
        raise DocumentNotFound(
            handle=handle, detail="its trace has no such text, or the retention of it is over"
        )

    async def read(self, document: Document, *, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset` on; nothing behind the end, or where it went."""
        last = min(offset + limit, document.size) - 1
        if last < offset:
            return b""
        return bytes(await self._link.command("GETRANGE", document.key, offset, last))

    async def _belonging(self, trace_id: str, text_id: str) -> list[str]:
        """The keys of a text of a trace, whichever session it was kept for."""
        belongings = self._keys.belongings(trace_id)
        pattern = self._keys.shelved(trace_id, _ANY_SESSION, text_id)
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, page = await self._link.command(
                "SSCAN", belongings, cursor, "MATCH", pattern, "COUNT", _PAGE
            )
            found.update(page)
            if cursor == b"0":
                return sorted(key.decode() for key in found)
