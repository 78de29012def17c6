"""What the tests of proxies share: waits that are not waited, and a cell that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.testing.host import RecordingHost
from colony.testing.source import RecordingSource
from workers.proxy import Proxy


class Pauses:
    """Waits that are noted and not waited."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        await asyncio.sleep(0.001)


def source() -> RecordingSource:
    return RecordingSource(RecordingHost.of("proxy").spec)


@asynccontextmanager
async def started(pauses: Pauses, **params: object) -> AsyncIterator[Proxy]:
    proxy = Proxy(Proxy.Params.model_validate(params), pause=pauses)
    await proxy.start(RecordingHost.of("proxy"))
    try:
        yield proxy
    finally:
        await proxy.stop()


@asynccontextmanager
async def running(proxy: Proxy, source: RecordingSource) -> AsyncIterator[None]:
    task = asyncio.create_task(proxy.run(source))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def answer(text: str, **context: object) -> Envelope:
    return Envelope.model_validate(
        {
            "id": "e",
            "trace_id": "t",
            "target": "/proxy",
            "ttl": 9,
            "context": context,
            "body": Body.of(Entry.say("user", "q"), Entry.say("assistant", text)),
        }
    )
