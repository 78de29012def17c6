"""HTTP bodies: how much of an answer is read, and how much is made of it."""

import zlib
from dataclasses import dataclass

import httpx

from colony.errors import Unreadable

_DEFLATED = frozenset({"gzip", "x-gzip", "deflate"})
# What zlib calls a stream with the header of gzip or with one of its own.
_EITHER = 32 + zlib.MAX_WBITS


@dataclass(frozen=True)
class HttpBody:
    """The beginning of a body, and what is known of its size.

    That is the size of all of it where `counted`, and else how much had come when reading stopped.
    """

    head: bytes
    size: int
    counted: bool = True

    @property
    def cut(self) -> bool:
        """Whether there is more than the beginning."""
        return self.size > len(self.head) or not self.counted


async def read_body(response: httpx.Response, *, limit: int) -> HttpBody:
    """The first `limit` bytes of a streamed body, decompressed; the rest is not read.

    So a body that never ends does no harm, and of one that decompresses to any number of bytes no
    more than the limit is ever held. Raises Unreadable where the compression is not known.
    """
    head, came = bytearray(), 0
    content = _content(response)
    async for chunk in response.aiter_raw():
        head += content.decode(chunk, limit + 1 - len(head))
        came += len(chunk)
        if len(head) > limit or came > limit:
            return _cut(response, head, limit)
        if content.ended:
            break
    return HttpBody(bytes(head), len(head))


def _cut(response: httpx.Response, head: bytearray, limit: int) -> HttpBody:
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and not _encoding(response):
        return HttpBody(bytes(head[:limit]), int(declared))
    return HttpBody(bytes(head[:limit]), len(head), counted=False)


class _Content:
    """Content that is sent as it is."""

    ended = False

    def decode(self, chunk: bytes, room: int) -> bytes:
        """The content in a chunk, at most `room` bytes of it."""
        return chunk[:room]


class _Deflated(_Content):
    """Content that is sent compressed."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_EITHER)

    def decode(self, chunk: bytes, room: int) -> bytes:
        try:
            data = self._stream.decompress(self._stream.unconsumed_tail + chunk, room)
        except zlib.error as error:
            raise Unreadable(detail=f"the answer is compressed and broken: {error}") from error
        # What follows the stream would only be kept aside.
        self.ended = self._stream.eof
        return data


def _content(response: httpx.Response) -> _Content:
    encoding = _encoding(response)
    if not encoding:
        return _Content()
    if encoding not in _DEFLATED:
        # One compression within another makes any number of bytes of a few.
        raise Unreadable(detail=f"the answer is compressed, unasked for: {encoding[:50]!r}")
    return _Deflated()


def _encoding(response: httpx.Response) -> str:
    written = response.headers.get("content-encoding", "").strip().lower()
    return "" if written == "identity" else written
