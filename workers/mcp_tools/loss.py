"""The loss of a connection: whether it came, why, and what the server said before."""

import asyncio
from typing import Final

# What a server may say in one message.
MAX_MESSAGE_BYTES: Final = 16 << 20

# The code of an error that answers a message which certainly never reached the server.
UNHEARD: Final = -32_099

_EXCERPT: Final = 300


class Loss:
    """Why a connection is of no use any more, once it is not."""

    def __init__(self) -> None:
        self._reason = ""
        self._last = ""
        self._came = asyncio.Event()

    @property
    def came(self) -> bool:
        """Whether the connection is lost."""
        return self._came.is_set()

    @property
    def reason(self) -> str:
        """Why it is lost, with the last words of the server, which may be heard only later."""
        return f"{self._reason}; it said: {self._last}" if self._last else self._reason

    def tell(self, reason: str) -> None:
        """The connection is lost; the first reason counts."""
        if not self.came:
            self._reason = reason
            self._came.set()

    def overheard(self, data: bytes) -> None:
        """Remember the last that a server said which was no message."""
        if text := data.decode(errors="replace").strip():
            self._last = text[-_EXCERPT:]

    async def wait(self) -> None:
        """Return once the connection is lost."""
        await self._came.wait()
