"""A bounded client: HTTP for which a response above the limit is a connection that breaks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import DefaultAsyncHttpxClient

from workers.llm.provider import Sent, unseen

MAX_RESPONSE_BYTES = 16 << 20
# How long the end of a stream is waited for when all that it says is known.
DRAIN_S = 0.05

# Headers that tell how a body came, not what it is.
_OF_THE_WIRE = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})


# What a response says it is that is none of events, whatever was asked for.
_WHOLE = ("application/json", "text/html")


class ResponseTooLarge(httpx2.ReadError):
    """A response that does not end within the limit."""

    def __init__(self, request: httpx2.Request) -> None:
        detail = f"the response has more than {MAX_RESPONSE_BYTES} bytes"
        super().__init__(detail, request=request)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stream may take to begin, and how long it may be silent then."""

    first_byte_s: float
    idle_s: float


# Libraries hide the request they make of a call; whoever wants to see it is found by the task.
_sees: ContextVar[Sent] = ContextVar("sees", default=unseen)


@contextmanager
def seen_by(sent: Sent) -> Iterator[None]:
    """What this task sends meanwhile is told to `sent`, as it goes out."""
    before = _sees.set(sent)
    try:
        yield
    finally:
        _sees.reset(before)


class BoundedClient(DefaultAsyncHttpxClient):
    """A client that reads a response to its end within the limit; one that is a stream and no
    refusal is left to be read by `pieces`."""

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        """The response, whole unless it streams."""
        _sees.get()(request.content)
        response = await super().send(request, stream=True, **options)
        return response if stream and response.is_success else await read_whole(response)


def is_whole(response: httpx2.Response) -> bool:
    """Whether a response that was asked for as a stream came in one piece."""
    return response.headers.get("content-type", "").lower().startswith(_WHOLE)


async def read_whole(response: httpx2.Response) -> httpx2.Response:
    """The same response with its content; raises ResponseTooLarge where that has no end."""
    content = bytearray()
    try:
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MAX_RESPONSE_BYTES:
                raise ResponseTooLarge(response.request)
    finally:
        await response.aclose()
    # As bytes: what a server writes into a header is not always a text.
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in _OF_THE_WIRE]
    return httpx2.Response(
        response.status_code, headers=headers, content=bytes(content), request=response.request
    )


async def pieces(
    response: httpx2.Response, *, first_byte_by: float, idle_s: float
) -> AsyncGenerator[bytes]:
    """The content of a stream as it comes; `first_byte_by` is a time of the event loop.

    Raises TimeoutError where it does not begin by then or is silent too long, and ResponseTooLarge.
    """
    read, total, due = response.aiter_bytes(), 0, first_byte_by
    try:
        while True:
            async with asyncio.timeout_at(due):
                piece = await anext(read, None)
            if piece is None:
                return
            total += len(piece)
            if total > MAX_RESPONSE_BYTES:
                raise ResponseTooLarge(response.request)
            yield piece
            due = asyncio.get_running_loop().time() + idle_s
    finally:
        await response.aclose()


async def drain(incoming: AsyncIterator[bytes]) -> None:
    """Read the end of a stream that says no more, if it comes at once.

    Its connection serves the next call then; one that is left before its end does not.
    """
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in incoming:
                pass
