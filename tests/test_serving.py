"""Serving: how services end together, and what is said of it."""

import asyncio
import logging
import os
import signal

import pytest

from colony.errors import ServerUnfit
from colony.serving import serve_until_stopped


class Waits:
    """Serves until it is stopped."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


class Fails(Waits):
    async def serve(self) -> None:
        raise ServerUnfit(detail="it would evict work")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="colony.serving")
    return caplog


async def test_a_service_that_fails_alone_ends_and_nothing_is_said_of_a_signal(
    lines: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ServerUnfit):
        await serve_until_stopped([Fails()])

    assert lines.messages == []


async def test_a_service_that_fails_stops_the_others_and_no_signal_was_the_first(
    lines: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ServerUnfit):
        await serve_until_stopped([Waits(), Fails()])

    assert lines.messages == ['stopping hint="a signal ends at once"']


async def test_a_signal_stops_what_serves(lines: pytest.LogCaptureFixture) -> None:
    serving = asyncio.create_task(serve_until_stopped([Waits(), Waits()]))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)

    await serving

    assert lines.messages == ['stopping hint="a second signal ends at once"']
