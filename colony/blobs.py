"""Blobs: bodies too large for a stream entry, kept under keys of their own.

A blob is written with a short expiry before the commit that refers to it; the commit lists it on
its trace and takes the expiry off. What crashes in between leaves nothing behind.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final

from colony.body import Body, BulkPointer, Element, Entry, TextPointer
from colony.codec import blob_reference, decode_body, encode_blob_reference, unpack
from colony.envelope import derived_id
from colony.errors import BlobRecursionTooDeep, BlobUnavailable, EnvelopeError
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind

UNREFERENCED_MS: Final = 10 * 60 * 1000
DEFAULT_INLINE_MAX_BYTES: Final = 65_536
DEFAULT_MAX_RECURSION: Final = 64


class Blobs:
    """The blobs of one partition."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        *,
        inline_max_bytes: int = DEFAULT_INLINE_MAX_BYTES,
        max_recursion: int = DEFAULT_MAX_RECURSION,
    ) -> None:
        self.link = link
        self.keys = keys
        self.inline_max_bytes = inline_max_bytes
        self.max_recursion = max_recursion

    async def offload(self, body: bytes, trace_id: str) -> tuple[bytes, str | None]:
        """What travels for `body`, and the blob that must outlive the commit, if one does.

        A body at or above the inline limit is put under a key of its trace and content, so that
        doing it twice writes the same blob, and no trace depends on the retention of another. It
        is written even where the server is full: a commit is what drains it.
        """
        return await self._refer(body, trace_id, self._keep)

    async def admit(self, body: bytes, trace_id: str) -> tuple[bytes, str | None]:
        """As `offload`, for the body of a birth, which a full server refuses."""
        return await self._refer(body, trace_id, self.put)

    async def put(self, blob_id: str, content: bytes) -> None:
        """Write a blob that expires unless a commit refers to it.

        One that is there already has the same content. It is kept at least as long, and what was
        said of its expiry by a commit stands.
        """
        key = self.keys.blob(blob_id)
        if await self.link.command("SET", key, content, "NX", "PX", UNREFERENCED_MS) is None:
            await self.link.command("PEXPIRE", key, UNREFERENCED_MS, "GT")

    async def get(self, blob_id: str) -> bytes:
        """The content of a blob; raises BlobUnavailable where it is gone."""
        content = await self.link.command("GET", self.keys.blob(blob_id))
        if content is None:
            raise BlobUnavailable(blob_id=blob_id)
        return bytes(content)

    async def inline(self, body: bytes) -> bytes:
        """`body`, or the content of the blob it refers to.

        What cannot be resolved is returned as it is: broken bytes, and a reference to nothing.
        """
        try:
            blob_id = blob_reference(body)
            return body if blob_id is None else await self.get(blob_id)
        except (BlobUnavailable, EnvelopeError):
            return body

    async def open(self, body: bytes) -> Body:
        """The body as a cell sees it: references resolved, pointers replaced by what they name.

        Raises BlobUnavailable, BlobRecursionTooDeep, EnvelopeError or BodyError.
        """
        blob_id = blob_reference(body)
        opened = decode_body(body if blob_id is None else await self.get(blob_id))
        if opened.messages is None or len(opened.entries) == len(opened.messages):
            return opened
        spliced: list[Entry] = []
        for element in opened.messages:
            spliced += await self._splice(element, ())
        return opened.model_copy(update={"messages": tuple(spliced)})

    async def _refer(
        self, body: bytes, trace_id: str, write: Callable[[str, bytes], Awaitable[None]]
    ) -> tuple[bytes, str | None]:
        known = blob_reference(body)
        if known is not None:
            return body, known
        if len(body) < self.inline_max_bytes:
            return body, None
        content = hashlib.blake2b(body, digest_size=16).hexdigest()
        blob_id = derived_id("blob", trace_id, content)
        await write(blob_id, body)
        return encode_blob_reference(blob_id), blob_id

    async def _keep(self, blob_id: str, content: bytes) -> None:
        key = self.keys.blob(blob_id)
        call = bind("keep_blob", blob=key, content=content, keep_ms=UNREFERENCED_MS, offset=0)
        await self.link.run(call)

    async def _splice(self, element: Element, above: tuple[str, ...]) -> list[Entry]:
        if isinstance(element, Entry):
            return [element]
        blob_id = element.text_id if isinstance(element, TextPointer) else element.messages_id
        if blob_id in above or len(above) >= self.max_recursion:
            raise BlobRecursionTooDeep(limit=self.max_recursion, blob_id=blob_id)
        content = unpack(await self.get(blob_id))
        found = content if isinstance(element, BulkPointer) else [content]
        inner = Body.parse({"messages": found}).messages or ()
        return [e for part in inner for e in await self._splice(part, (*above, blob_id))]
