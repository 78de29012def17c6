"""Served: an application over HTTP for as long as a `with` block lasts, on a free port."""

import socket
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

START_PATIENCE_S = 10.0


class Served:
    """Routes that are served by a thread of their own. Use as a context manager."""

    def __init__(self, *routes: BaseRoute) -> None:
        self._socket = socket.socket()
        config = uvicorn.Config(
            Starlette(routes=routes), log_config=None, lifespan="off", ws="none", access_log=False
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    @property
    def origin(self) -> str:
        """Where it is served, without a path."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._socket.bind(("127.0.0.1", 0))
        self._thread.start()
        deadline = time.monotonic() + START_PATIENCE_S
        while not self._server.started and time.monotonic() < deadline:
            self._thread.join(0.01)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A client that waits for a delayed answer is not waited for.
        self._server.force_exit = True
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
