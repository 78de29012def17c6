"""A real HTTP server on a free port of this machine, answering from a table of paths."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Reply:
    """What the server sends. Without `length` the body ends with the connection.

    An endless one is followed by `again`, or by itself, until nobody reads it any more.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: bool = True
    hang: bool = False
    endless: bool = False
    again: bytes = b""

    def encoded(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} X", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.length:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode() + self.body


@dataclass
class WebServer:
    port: int
    replies: dict[str, Reply]
    requests: list[str]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def serving() -> AsyncIterator[WebServer]:
    replies: dict[str, Reply] = {}
    requests: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            requests.append(request)
            path = request.split()[1].partition("?")[0]
            reply = replies.get(path, Reply(b"nothing here", 404))
            writer.write(reply.encoded())
            await writer.drain()
            while reply.endless:
                writer.write(reply.again or reply.body)
                await writer.drain()
            if reply.hang:
                await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield WebServer(server.sockets[0].getsockname()[1], replies, requests)
