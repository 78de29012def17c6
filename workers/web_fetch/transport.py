"""The transport: HTTP over connections that go to screened addresses only."""

import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import httpcore
import httpx

from workers.web_fetch.screen import Screen

SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)


class ScreenedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves and screens a host itself, then connects to the very address it screened.

    So a name that resolves to something else a moment later gains nothing. TLS still checks the
    name.
    """

    def __init__(self, screen: Screen, network: httpcore.AsyncNetworkBackend) -> None:
        self._screen = screen
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address of `host` that answers."""
        *others, last = await self._screen.addresses(host, port)
        for address in others:
            try:
                return await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except httpcore.ConnectError:
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)


class ScreenedTransport(httpx.AsyncBaseTransport):
    """Sends requests over a screened network: no proxy, no cookies, no credentials."""

    def __init__(self, screen: Screen, network: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            network_backend=ScreenedNetwork(screen, network or httpcore.AnyIOBackend()),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response to `request`, its body still to be read."""
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        outgoing = httpcore.Request("GET", url, headers=request.headers.raw)
        with _errors_of_httpx():
            response = await self._pool.handle_async_request(outgoing)
        return httpx.Response(response.status, headers=response.headers, stream=_Stream(response))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx():
            async for chunk in cast("AsyncIterator[bytes]", self._response.stream):
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


@contextmanager
def _errors_of_httpx() -> Iterator[None]:
    try:
        yield
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
        raise httpx.TransportError(str(error) or type(error).__name__) from error
