"""The loss of a connection: whether it came, why, and what the server said before."""

import asyncio
from collections.abc import Collection
from typing import Final

from colony.redaction import without_values

# What a server may say in one message.
MAX_MESSAGE_BYTES: Final = 16 << 20

# The code of an error that answers a message which certainly never reached the server.
UNHEARD: Final = -32_099

_EXCERPT: Final = 300


class Loss:
    """Why a connection is of no use any more, once it is not."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._reason = ""
        self._last = ""
        self._came = asyncio.Event()

    @property
    def came(self) -> bool:
        """Whether the connection is lost."""
        return self._came.is_set()

    @property
    def reason(self) -> str:
        """Why it is lost, with the last words of the server, which may be heard only later.

        A model reads it, and a log keeps it: secrets that the server was given are left out.
        """
        told = f"{self._reason}; it said: {self._last}" if self._last else self._reason
        return without_values(told, self._secrets)

    @property
    def cause(self) -> str:
        """Why it is lost, without the last words of the server, which may differ each time."""
        return without_values(self._reason, self._secrets)

    def tell(self, reason: str) -> None:
        """The connection is lost; the first reason counts."""
        if not self.came:
            self._reason = reason
            self._came.set()

    def overheard(self, data: bytes) -> None:
        """Remember the last that a server said which was no message."""
        if text := data.decode(errors="replace").strip():
            # Before it is cut, or half of a secret would stay.
            self._last = without_values(text, self._secrets)[-_EXCERPT:]

    async def wait(self) -> None:
        """Return once the connection is lost."""
        await self._came.wait()
