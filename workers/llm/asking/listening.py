"""Listening: who hears an answer while it is made, and how often they are told."""

import asyncio
from dataclasses import dataclass, field

from colony.host import Host
from workers.llm.provider import Provider, Reply, Request, Sent, Witness, unseen

# A fast model gives hundreds of fragments a second, and nobody reads faster than this.
EVERY_S = 0.05


class Nobody:
    """A witness that hears nothing: the answer is told when it is whole. `sent` sees what goes
    out."""

    def __init__(self, sent: Sent = unseen) -> None:
        self.sent = sent

    async def text(self, fragment: str) -> None:
        """Nothing happens."""

    async def reasoning(self, fragment: str) -> None:
        """Nothing happens."""


@dataclass(slots=True)
class _Pending:
    """What of one kind was heard and is not told yet, and how much was told before."""

    fragments: list[str] = field(default_factory=list)
    offset: int = 0

    def take(self) -> tuple[int, str]:
        text, offset = "".join(self.fragments), self.offset
        self.fragments.clear()
        self.offset += len(text)
        return offset, text


class Followers:
    """A listener that tells whoever follows the trace, at most every 50 ms.

    What it was told in between comes together as one piece with its offset, in code points since
    the answer began. As an async context manager it has told everything when it is left.
    """

    def __init__(self, host: Host, *, message_id: str) -> None:
        self._host = host
        self._message_id = message_id
        self._pending = {"text": _Pending(), "reasoning": _Pending()}
        self._due: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Followers":
        return self

    async def __aexit__(self, *_: object) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.cancel()
            await asyncio.gather(due, return_exceptions=True)
        await self._tell()

    async def text(self, fragment: str) -> None:
        """The followers have heard it 50 ms later."""
        self._hear("text", fragment)

    async def reasoning(self, fragment: str) -> None:
        """The followers have heard it 50 ms later."""
        self._hear("reasoning", fragment)

    def _hear(self, kind: str, fragment: str) -> None:
        pending = self._pending[kind]
        if not pending.fragments:
            # What began first is told first.
            self._pending[kind] = self._pending.pop(kind)
        pending.fragments.append(fragment)
        if self._due is None or self._due.done():
            self._due = asyncio.create_task(self._tell_soon(), name="deltas")

    async def _tell_soon(self) -> None:
        await asyncio.sleep(EVERY_S)
        await self._tell()

    async def _tell(self) -> None:
        for kind, pending in tuple(self._pending.items()):
            if pending.fragments:
                offset, text = pending.take()
                await self._host.tell(kind, message_id=self._message_id, offset=offset, text=text)


class Unheard:
    """A provider of which nothing is heard before its answer is whole."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def complete(self, request: Request, witness: Witness) -> Reply:
        """The answer to `request`; the witness is told what goes out, and nothing of the answer."""
        return await self._provider.complete(request, Nobody(witness.sent))

    async def close(self) -> None:
        """Nothing is held open afterwards."""
        await self._provider.close()
