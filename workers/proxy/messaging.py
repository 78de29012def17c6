"""Platforms: what a proxy needs of whoever carries messages to and from people."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from colony.errors import PlatformError
from colony.host import Source

# How a wait is waited; a test passes its own.
Pause = Callable[[float], Awaitable[None]]

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0


class Platform(Protocol):
    """Somebody who carries messages."""

    @property
    def name(self) -> str:
        """What `hop.platform` says."""

    def addresses(self, chat_id: object) -> bool:
        """Whether `chat_id` can name a chat here."""

    def parts(self, text: str) -> Sequence[str]:
        """The messages that `text` is sent as, in order."""

    async def send(self, chat_id: int | str, text: str, *, key: str) -> None:
        """The message is with the platform; raises PlatformError where it is not, or may not be.

        `key` is the same for every attempt to send this message, and for no other.
        """

    async def run(self, source: Source) -> None:
        """Make a birth of every message that comes in, until cancelled."""

    async def probe(self) -> str:
        """One line of what is reached, tried just now; raises PlatformError where nothing is."""

    async def close(self) -> None:
        """Close the connections."""


async def patiently(send: Callable[[], Awaitable[None]], *, budget_s: float, pause: Pause) -> None:
    """Send, and again as long as nothing can have been sent and all waits fit into `budget_s`.

    Raises the last PlatformError otherwise.
    """
    pause_s = FIRST_RETRY_S
    while True:
        try:
            return await send()
        except PlatformError as error:
            # Whoever is asked to wait for no time at all still waits.
            asked_s = error.retry_after_s
            wait_s = pause_s if asked_s is None else max(FIRST_RETRY_S, asked_s)
            if not error.repeatable or wait_s > budget_s:
                raise
        budget_s -= wait_s
        pause_s *= 2
        await pause(wait_s)


sleep: Pause = asyncio.sleep
