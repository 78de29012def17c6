"""A proxy before a server, which a test commands: it cuts, refuses, delays, holds and loses.

It knows RESP2, as a link speaks it, so far that it can lose the one reply to a certain command, or
cut a connection within one. Replies come in the order of their commands.
"""

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote, urlsplit

import hiredis
from redis.asyncio.connection import parse_url

from colony.lua.registry import scripts

CHUNK: Final = 65_536

Command = Sequence[bytes]
Reply = object
Match = Callable[[Command], bool]


def command(word: str) -> Match:
    """Matches every command of that name."""
    return lambda sent: sent[0].upper() == word.encode()


def script(name: str) -> Match:
    """Matches every run of a script of colony, by its hash or its text."""
    known = scripts()[name]
    forms = ((b"EVALSHA", known.sha.encode()), (b"EVAL", known.source))
    return lambda sent: tuple(sent[:2]) in forms


@dataclass(eq=False)
class _Trap:
    """What happens once, to the first command and reply that match."""

    match: Match
    telling: Callable[[Reply], bool] | None = None
    sprung: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """A proxy before the server at `server_url`. Use as an async context manager."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._folder = Path(tempfile.mkdtemp(prefix="colony-proxy-"))
        self._listener: asyncio.Server | None = None
        self._passages: dict[asyncio.Task[None], _Passage] = {}
        self._traps: list[_Trap] = []
        self._delay_s = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()

    @property
    def url(self) -> str:
        """Where it is reached, with the login of the server: a socket of this user's."""
        login, at, _ = urlsplit(self._server_url).netloc.rpartition("@")
        return f"unix://{login}{at}{quote(str(self._socket))}"

    @property
    def connections(self) -> int:
        """How many connections pass."""
        return len(self._passages)

    def cut(self) -> None:
        """Cut every connection now; new ones pass."""
        for passage in self._passages.values():
            passage.abort()

    def refuse(self) -> None:
        """Cut every connection and refuse new ones until `admit`."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.cut()

    async def admit(self) -> None:
        """Let new connections pass. A repeat changes nothing."""
        if self._listener is None:
            self._socket.unlink(missing_ok=True)
            self._listener = await asyncio.start_unix_server(self._accept, self._socket)

    def delay(self, seconds: float) -> None:
        """Let replies pass so much later from now on; 0 for at once."""
        self._delay_s = seconds

    def hold(self) -> None:
        """Let commands pass, and keep every reply until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        """Let what is held pass, and all that follows."""
        self._flowing.set()

    def lose_reply(
        self, match: Match, *, telling: Callable[[Reply], bool] | None = None
    ) -> asyncio.Event:
        """Lose the next reply to a command that matches, and cut its connection there.

        It is the next that is no error and, with `telling`, of which that is true. The event is set
        when it is lost; all that follows passes.
        """

        def counts(reply: Reply) -> bool:
            return not isinstance(reply, Exception) and (telling is None or telling(reply))

        trap = _Trap(match, counts)
        self._traps.append(trap)
        return trap.sprung

    def cut_within(self, match: Match) -> asyncio.Event:
        """Let half of the next command that matches pass, and cut its connection there.

        The event is set when that is done; all that follows passes.
        """
        trap = _Trap(match)
        self._traps.append(trap)
        return trap.sprung

    async def __aenter__(self) -> Self:
        await self.admit()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()
        for task in self._passages:
            task.cancel()
        await asyncio.gather(*self._passages, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _socket(self) -> Path:
        return self._folder / "proxy.sock"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            server_reader, server_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        passage = self._passages[task] = _Passage(
            self, reader, writer, server_reader, server_writer
        )
        try:
            await passage.run()
        finally:
            del self._passages[task]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = parse_url(self._server_url)
        if "path" in place:
            return await asyncio.open_unix_connection(place["path"])
        return await asyncio.open_connection(place["host"], place.get("port", 6379))

    def _cut_here(self, sent: Command) -> bool:
        trap = next((t for t in self._traps if t.telling is None and t.match(sent)), None)
        return self._spring(trap)

    def _lost(self, sent: Command, frame: bytes) -> bool:
        for trap in self._traps:
            if trap.telling is not None and trap.match(sent) and trap.telling(_value(frame)):
                return self._spring(trap)
        return False

    def _spring(self, trap: _Trap | None) -> bool:
        if trap is None:
            return False
        self._traps.remove(trap)
        trap.sprung.set()
        return True

    async def _wait(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._flowing.wait()


class _Passage:
    """One connection that passes, and what it is still owed."""

    def __init__(
        self,
        proxy: Proxy,
        client_reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client_reader, self._client = client_reader, client
        self._server_reader, self._server = server_reader, server
        self._owed: deque[Command] = deque()

    async def run(self) -> None:
        """Returns when either side is gone; then both are."""
        ways = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            # What was written to the client before is still to arrive there.
            self._client.close()
            self._server.transport.abort()

    def abort(self) -> None:
        """Cut both sides; what is under way is lost."""
        self._client.transport.abort()
        self._server.transport.abort()

    async def _ask(self) -> None:
        with suppress(OSError):
            async for frame in _frames(self._client_reader):
                sent = _value(frame)
                assert isinstance(sent, list)
                if self._proxy._cut_here(sent):
                    self._server.write(frame[: len(frame) // 2])
                    await self._server.drain()
                    return
                self._owed.append(sent)
                self._server.write(frame)
                await self._server.drain()

    async def _answer(self) -> None:
        with suppress(OSError):
            async for frame in _frames(self._server_reader):
                if self._proxy._lost(self._owed.popleft(), frame):
                    return
                await self._proxy._wait()
                self._client.write(frame)
                await self._client.drain()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The commands or replies that arrive, whole, one at a time."""
    waiting = b""
    while data := await reader.read(CHUNK):
        waiting += data
        for frame in _split(waiting):
            waiting = waiting[len(frame) :]
            yield frame


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while (end := _end(data, at)) is not None:
        yield data[at:end]
        at = end


def _end(data: bytes, at: int) -> int | None:
    """Where the value that begins at `at` ends; None where a part of it is missing."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind, end = data[at : at + 1], line + 2
    if kind == b"$":
        length = int(data[at + 1 : line])
        end += length + 2 if length >= 0 else 0
    elif kind == b"*":
        for _ in range(int(data[at + 1 : line])):
            found = _end(data, end)
            if found is None:
                return None
            end = found
    return end if end <= len(data) else None


def _value(frame: bytes) -> Reply:
    reader = hiredis.Reader()
    reader.feed(frame)
    value: Reply = reader.gets()
    return value
