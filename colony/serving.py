"""Serving: services that share an event loop, from their start to a clean end."""

import asyncio
import signal
from collections.abc import Sequence
from typing import Final, Protocol

from colony.errors import ServerUnavailable
from colony.log import get_logger

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

log = get_logger("colony.serving")


class Service(Protocol):
    """Something that serves until it is stopped."""

    async def serve(self) -> None:
        """Serve; returns once stopped and drained."""

    def stop(self) -> None:
        """Let `serve` come to an end."""


async def serve_until_stopped(services: Sequence[Service]) -> None:
    """Serve all until SIGINT or SIGTERM asks for a clean end.

    A second signal ends at once, as KeyboardInterrupt. Where one service fails, the others are
    stopped and its error is raised.
    """
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(service.serve()) for service in services]
    stopping = hurried = False

    def stop() -> None:
        nonlocal stopping, hurried
        if stopping:
            hurried = True
            for task in tasks:
                task.cancel()
            return
        stopping = True
        log.info("stopping", hint="a second signal ends at once")
        stop_all()

    def stop_all() -> None:
        for service in services:
            service.stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        asked = stopping
        if not asked:
            if not all(task.done() for task in tasks):
                log.info("stopping", hint="a signal ends at once")
            stopping = True
            stop_all()
        await asyncio.wait(tasks)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    if hurried:
        raise KeyboardInterrupt
    errors = [error for task in tasks if (error := _error(task)) is not None]
    # A server that went away first cannot be told goodbye.
    if errors and not (asked and all(isinstance(error, ServerUnavailable) for error in errors)):
        raise errors[0]


def _error(task: "asyncio.Task[None]") -> BaseException | None:
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
