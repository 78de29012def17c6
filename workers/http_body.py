"""HTTP bodies: how much of an answer is read."""

from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class HttpBody:
    """The beginning of a body, and the size of all of it."""

    head: bytes
    size: int

    @property
    def cut(self) -> bool:
        """Whether there is more than the beginning."""
        return self.size > len(self.head)


async def read_body(response: httpx.Response, *, limit: int) -> HttpBody:
    """The first `limit` bytes of a streamed body, decompressed; the rest is counted, not kept.

    The rest is not even read where the server said how long the body is.
    """
    head, size = bytearray(), 0
    declared = None if "content-encoding" in response.headers else _declared(response)
    async for chunk in response.aiter_bytes():
        head += chunk[: limit - len(head)]
        size += len(chunk)
        if size > limit and declared is not None:
            return HttpBody(bytes(head), declared)
    return HttpBody(bytes(head), size)


def _declared(response: httpx.Response) -> int | None:
    written = response.headers.get("content-length", "")
    return int(written) if written.isdecimal() else None
