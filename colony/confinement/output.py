"""Output: what a program writes to a pipe, its beginning kept and the rest counted."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

# Beyond what is kept, so much is read and dropped at once before the program has to wait.
_BURST_BYTES = 1024**2
_PAUSE_S = 0.01

# How long the end of a pipe is waited for after the program that wrote to it is gone.
_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Captured:
    """The beginning of what was written, and the size of the whole."""

    head: bytes
    size: int


class Capture(asyncio.Protocol):
    """One pipe, read as it is written to. `write_end` is for a program to inherit."""

    def __init__(self, write_end: BinaryIO, keep_bytes: int) -> None:
        self.write_end = write_end
        self._keep_bytes = keep_bytes
        self._head = bytearray()
        self._size = 0
        self._burst = 0
        self._closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.ReadTransport | None = None

    async def rest(self) -> Captured:
        """What was written until all writers are gone."""
        await asyncio.wait([self._closed], timeout=_PATIENCE_S)
        return Captured(bytes(self._head), self._size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reading begins."""
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Keep or count; who writes without end is made to wait."""
        self._size += len(data)
        room = self._keep_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            return
        self._burst += len(data)
        if self._burst >= _BURST_BYTES and self._transport is not None:
            self._burst = 0
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_PAUSE_S, self._go_on)

    def connection_lost(self, error: Exception | None) -> None:
        """The last writer is gone."""
        if not self._closed.done():
            self._closed.set_result(None)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


@asynccontextmanager
async def captured(keep_bytes: int) -> AsyncIterator[Capture]:
    """A pipe of which both ends are closed at the end of the block."""
    reader, writer = _pipe()
    with writer:
        capture = Capture(writer, keep_bytes)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: capture, reader)
        try:
            yield capture
        finally:
            transport.close()


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    read_end, write_end = os.pipe()
    return open(read_end, "rb", 0), open(write_end, "wb", 0)
