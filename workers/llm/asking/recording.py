"""Recording: what a model is sent is kept while it answers.

A call waits for it only where the answer is there first.
"""

import asyncio
from collections.abc import Awaitable, Callable

from workers.llm.provider import Sent

# Keeps a body that is sent by the call of this number.
Record = Callable[[bytes, int], Awaitable[None]]


class Recording:
    """What is sent for one question. Left as a context, all of it is kept."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._calls = 0
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Recording":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for task in self._under_way:
                task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=kind is not None)

    def of_next_call(self) -> Sent:
        """Who is told what the next call sends: once, or again where the server asks for that."""
        self._calls += 1
        number = self._calls

        def sent(body: bytes) -> None:
            task = asyncio.create_task(self._keep(body, number), name="recording")
            self._under_way.add(task)

        return sent

    async def _keep(self, body: bytes, number: int) -> None:
        await self._record(body, number)


async def unrecorded(body: bytes, attempt: int) -> None:
    """Nothing is kept."""
