"""The server: the application on a socket, in the event loop of whoever runs it."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from colony.access import Access
from colony.api.app import make_app
from colony.api.problems import Problem
from colony.engine import Engine
from colony.errors import ConfigError
from colony.log import get_logger
from colony.principals import Principals
from colony.redaction import without_login

BACKLOG: Final = 2048
GRACE_S: Final = 5

log = get_logger("colony.api")


class Server:
    """The HTTP interface of the colony at `url`, bound when it is made.

    Raises ConfigError where the address cannot be had.
    """

    def __init__(
        self, url: str, name: str, *, host: str, port: int, principals: Principals
    ) -> None:
        self._access = Access(url, name)
        self._engine = Engine(self._access)
        self._of = {"colony": name, "server": without_login(url)}
        self._socket = _bind(host, port)
        config = uvicorn.Config(
            _Interruptible(make_app(self._engine, principals=principals)),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._http = _Quiet(config)

    @property
    def address(self) -> str:
        """Where it is reached."""
        host, port, *_ = self._socket.getsockname()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def serve(self) -> None:
        """Answer requests until stopped; those under way get a few seconds to be finished."""
        log.info("listening", address=self.address, **self._of)
        # The budget of a message is that of the newest tree.
        watching = asyncio.create_task(self._access.publication.watch())
        try:
            await self._http.serve(sockets=[self._socket])
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._engine.close()
            await self._access.close()

    def stop(self) -> None:
        """Take no more requests, end the streams, and let `serve` come to an end."""
        self._http.should_exit = True
        self._access.feed.stop()
        self._engine.feed.stop()


class _Quiet(uvicorn.Server):
    """A server that leaves signals to whoever runs the loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Interruptible:
    """An application whose requests, cancelled at the end of the grace period, are answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on; answer it where it is cancelled without an answer."""
        answered = False

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not answered:
                headers = {"Connection": "close"}
                problem = Problem(503, "server_stopping", "this server stops", headers=headers)
                await problem.response()(scope, receive, send)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(detail=f"cannot listen on {host}:{port}: {_why(error)}") from None


def _why(error: OSError) -> str:
    # The text of the error repeats the address.
    return os.strerror(error.errno) if error.errno else str(error)
