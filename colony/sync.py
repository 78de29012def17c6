"""Sync: the engine for code that has no event loop of its own: scripts and notebooks.

An engine runs in a thread with a loop, and whoever calls waits for it there. A notebook may have a
loop in its own thread; it is not touched.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from colony.access.run_follower import Frame
from colony.agent.events import Event
from colony.engine import Engine, Run

P = ParamSpec("P")
T = TypeVar("T")


class _Loop:
    """A loop in a thread of its own, which ends with the process or when it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="colony-sync", daemon=True
        )
        self._thread.start()

    def wait(self, asked: Coroutine[Any, Any, T]) -> T:
        """What is answered, once it is.

        Who is interrupted while they wait leaves nothing running: it is cancelled, and over.
        """
        working: Future[asyncio.Task[T]] = asyncio.run_coroutine_threadsafe(
            _begun(asked), self._loop
        )
        task = working.result()
        ended = threading.Event()
        self._loop.call_soon_threadsafe(task.add_done_callback, lambda _: ended.set())
        try:
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(task.cancel)
            ended.wait()
            raise
        return task.result()

    def close(self) -> None:
        """Nothing runs any more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _begun(asked: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.ensure_future(asked)


async def _next(told: AsyncGenerator[T]) -> T:
    return await anext(told)


def _engine(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncEngine", P], T]:
    @wraps(method)
    def waiting(self: "SyncEngine", /, *given: P.args, **named: P.kwargs) -> T:
        return self.loop.wait(method(self.engine, *given, **named))

    return waiting


def _beginning(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, Run]],
) -> Callable[Concatenate["SyncEngine", P], "SyncRun"]:
    @wraps(method)
    def waiting(self: "SyncEngine", /, *given: P.args, **named: P.kwargs) -> "SyncRun":
        return SyncRun(self.loop, self.loop.wait(method(self.engine, *given, **named)))

    return waiting


def _run(
    method: Callable[Concatenate[Run, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncRun", P], T]:
    @wraps(method)
    def waiting(self: "SyncRun", /, *given: P.args, **named: P.kwargs) -> T:
        return self.loop.wait(method(self.run, *given, **named))

    return waiting


class SyncRun:
    """A run, as `Run` is, for code that waits."""

    def __init__(self, loop: _Loop, run: Run) -> None:
        self.loop = loop
        self.run = run

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    @property
    def session_id(self) -> str:
        """The session that it is a run of."""
        return self.run.session_id

    def events(self) -> Iterator[Event]:
        """Every event of the run in order, as `Run.events` tells them."""
        events = self.run.events()
        with suppress(StopAsyncIteration):
            try:
                while True:
                    yield self.loop.wait(_next(events))
            finally:
                self.loop.wait(events.aclose())

    result = _run(Run.result)
    resolve = _run(Run.resolve)
    cancel = _run(Run.cancel)
    steer = _run(Run.steer)


class SyncEngine:
    """Agents of a colony, as `Engine` has them, for code that waits."""

    def __init__(self, loop: _Loop, engine: Engine) -> None:
        self.loop = loop
        self.engine = engine

    @classmethod
    def connect(cls, url: str | None = None, *, colony: str | None = None) -> Self:
        """An engine over a connection of its own, as `Engine.connect` finds it."""
        loop = _Loop()
        try:
            return cls(loop, loop.wait(Engine.connect(url, colony=colony)))
        except BaseException:
            loop.close()
            raise

    def close(self) -> None:
        """Nobody follows any more, and what the engine has connected is closed."""
        self.loop.wait(self.engine.close())
        self.loop.close()

    agents = _engine(Engine.agents)
    create_session = _engine(Engine.create_session)
    session = _engine(Engine.session)
    sessions = _engine(Engine.sessions)
    transcript = _engine(Engine.transcript)
    fork = _engine(Engine.fork)
    delete = _engine(Engine.delete)
    run = _beginning(Engine.run)
    retry = _beginning(Engine.retry)
    compact = _engine(Engine.compact)
    cancel = _engine(Engine.cancel)
    steer = _engine(Engine.steer)
    asks = _engine(Engine.asks)
    resolve = _engine(Engine.resolve)
    record = _engine(Engine.record)

    def attach(self, session_id: str, run_id: str) -> SyncRun:
        """A run that somebody has begun."""
        return SyncRun(self.loop, self.engine.attach(session_id, run_id))

    def follow(self, session_id: str, **given: Any) -> Iterator[Frame]:
        """The events of a session, as `Engine.follow` tells them."""
        frames = self.engine.follow(session_id, **given)
        with suppress(StopAsyncIteration):
            try:
                while True:
                    yield self.loop.wait(_next(frames))
            finally:
                self.loop.wait(frames.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
