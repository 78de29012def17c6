"""Handlers: a Python function `package.module:function` as the program of a cell.

It is called with the envelope and what it is given of the cell's params, and returns an emission, a
list of them, or None. Anything it raises is a failure the topology can route, except a CellError:
with that a handler decides for itself between being handled again and becoming a dead letter.
"""

import asyncio
import contextvars
import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from colony.envelope import Emission, Envelope
from colony.errors import (
    CellError,
    Fenced,
    NoRun,
    ServerChanged,
    ServerUnavailable,
    TopologyError,
)
from colony.host import Host
from workers.code.given import Given, wants_run
from workers.code.outcome import BROKEN, Failure, Outcome, timed_out

Answer = Emission | list[Emission] | None
# Of an envelope and what it is given.
Function = Callable[..., Answer | Awaitable[Answer]]


class InlineHandler:
    """A handler inside the worker: async ones in its event loop, plain ones in threads.

    A timeout stops waiting for a plain one, whose thread runs on: only a process can be killed.
    """

    def __init__(
        self, function: Function, given: Given, *, timeout_ms: int, concurrency: int
    ) -> None:
        self._function = function
        self._given = given
        self._wants_run = wants_run(function)
        self._timeout_ms = timeout_ms
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="handler")

    async def run(self, envelope: Envelope, host: Host) -> Outcome:
        """What the function gives for `envelope`."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000) as limit:
                return emissions(await self._call(envelope, await self._more(host)))
        except (CellError, Fenced, ServerUnavailable, ServerChanged):
            # The last three say nothing of the handler: its run is gone, or the server is.
            raise
        except (Exception, SystemExit) as error:
            # A handler is foreign code: whatever it raises is its answer, never a reason to die.
            if isinstance(error, TimeoutError) and limit.expired():
                return timed_out(self._timeout_ms, "nobody waits for it any more")
            told = "".join(traceback.format_exception(error))
            host.log.warning("handler_raised", traceback=told)
            return Failure(BROKEN, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """No further call begins."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _more(self, host: Host) -> tuple[object, ...]:
        """What a handler is given beside the envelope and its params; raises NoRun where it wants
        the run of an envelope that is of none."""
        if not self._wants_run:
            return ()
        run = await host.run()
        if run is None:
            raise NoRun(path=host.spec.path)
        return (run,)

    async def _call(self, envelope: Envelope, more: tuple[object, ...]) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(envelope, self._given, *more)
        call = contextvars.copy_context().run
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, call, self._function, envelope, self._given, *more
        )


def load(name: str) -> Function:
    """The function called `package.module:function`; raises TopologyError where there is none."""
    module_name, _, function_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise TopologyError(detail=f"handler {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # A module may raise anything when it is imported.
        told = f"{type(error).__name__}: {error}"
        raise TopologyError(detail=f"handler {name!r} cannot be imported: {told}") from error
    if not callable(found):
        raise TopologyError(detail=f"handler {name!r} is not a function")
    return cast(Function, found)


def emissions(answer: object) -> list[Emission]:
    """The emissions that a handler's answer stands for; raises TypeError for anything else."""
    if answer is None:
        return []
    found = answer if isinstance(answer, (list, tuple)) else [answer]
    for item in found:
        if not isinstance(item, Emission):
            raise TypeError(f"a handler returns emissions, not {type(item).__name__}")
    return list(found)
