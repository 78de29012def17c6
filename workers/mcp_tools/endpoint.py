"""The endpoint: an MCP server that is there already, spoken to by streamable HTTP."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client

from workers.mcp_tools.loss import MAX_MESSAGE_BYTES, UNHEARD, Loss

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

CONNECT_S: Final = 10.0
SESSION: Final = "mcp-session-id"

# A server that was started anew does not know the session; some say so with the wrong status.
_UNKNOWN_SESSION: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST)


@dataclass(frozen=True)
class Endpoint:
    """Where the server is, and what every request to it carries."""

    url: str
    headers: Mapping[str, str]
    silence_s: float

    @asynccontextmanager
    async def connect(self, loss: Loss) -> AsyncIterator["TransportStreams"]:
        """The messages from and to the server."""
        async with (
            httpx2.AsyncClient(
                headers=dict(self.headers),
                timeout=httpx2.Timeout(CONNECT_S, read=self.silence_s),
                transport=_Transport(httpx2.AsyncHTTPTransport()),
            ) as client,
            streamable_http_client(
                self.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams


class _Transport(httpx2.AsyncBaseTransport):
    """A transport that says which messages were not heard, and whose responses are bounded.

    A message that did not reach the server is answered in its place, with the error UNHEARD: the
    SDK would give up every other call of the connection as well.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if request.method != "POST":
                raise
            return _unheard(str(error) or type(error).__name__)
        known = request.method == "POST" and SESSION in request.headers
        if known and response.status_code in _UNKNOWN_SESSION:
            await response.aclose()
            return _unheard("the server does not know the session any more")
        # Events are bounded one by one where they are read.
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _unheard(reason: str) -> httpx2.Response:
    error = {"code": UNHEARD, "message": reason}
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(HTTPStatus.SERVICE_UNAVAILABLE, json=body)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(
                    f"the server answers with more than {MAX_MESSAGE_BYTES} bytes"
                )
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
