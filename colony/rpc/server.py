"""The server: the gRPC interface on a socket, in the event loop of whoever runs it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from grpc.aio import ServicerContext

from colony.access import Access
from colony.engine import Engine
from colony.errors import ColonyError, ConfigError, ServerUnavailable
from colony.log import Outage, get_logger
from colony.principals import Principal, Principals
from colony.redaction import without_login
from colony.rpc import agents_pb2 as pb
from colony.rpc import agents_pb2_grpc
from colony.rpc.conversation import Conversation
from colony.rpc.retry import Retry
from colony.rpc.statuses import end, status_of

MAX_MESSAGE_BYTES: Final = 10 * 1024 * 1024
GRACE_S: Final = 5.0

Context = ServicerContext[Any, pb.ServerMessage]

log = get_logger("colony.rpc")


class RpcServer:
    """The gRPC interface of the colony at `url`."""

    def __init__(
        self, url: str, name: str, *, host: str, port: int, principals: Principals
    ) -> None:
        self._access = Access(url, name)
        self._engine = Engine(self._access)
        self._principals = principals
        self._of = {"colony": name, "server": without_login(url)}
        self._host, self._port = (f"[{host}]" if ":" in host else host), port
        self._stopping = asyncio.Event()
        self._bound = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it is reached, once it serves."""
        return f"{self._host}:{self._port}"

    async def bound(self) -> None:
        """Return once it can be reached."""
        await self._bound.wait()

    async def serve(self) -> None:
        """Answer calls until stopped; those under way get a few seconds to be finished.

        Raises ConfigError where the address cannot be had.
        """
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ]
        )
        agents_pb2_grpc.add_AgentsServicer_to_server(
            _Agents(self._engine, self._principals, self._stopping), server
        )
        try:
            self._port = server.add_insecure_port(self.address)
        except RuntimeError:
            raise ConfigError(detail=f"cannot listen on {self.address} for gRPC") from None
        watching = asyncio.create_task(self._access.publication.watch())
        try:
            await server.start()
            log.info("listening", address=f"grpc://{self.address}", **self._of)
            self._bound.set()
            await self._stopping.wait()
            await server.stop(GRACE_S)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._engine.close()
            await self._access.close()

    def stop(self) -> None:
        """Take no more calls, end those that follow, and let `serve` come to an end."""
        self._stopping.set()
        self._engine.feed.stop()


class _Agents(agents_pb2_grpc.AgentsServicer):
    # That a handler may be a coroutine that writes, the types of grpc do not know.

    def __init__(self, engine: Engine, principals: Principals, stopping: asyncio.Event) -> None:
        self._engine = engine
        self._principals = principals
        self._stopping = stopping

    async def Converse(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.ClientMessage], context: Context
    ) -> None:
        """Hold a session."""
        async with self._answering(context):
            talk = Conversation(self._engine, self._who(context), context.write)
            async with self._leaving(talk):
                await talk.hold(request_iterator)

    async def RetryStart(  # type: ignore[override]
        self, request: pb.RetryRequest, context: Context
    ) -> None:
        """Make a step again, and tell the run."""
        async with self._answering(context):
            retry = Retry(self._engine, self._who(context), context.write)
            async with self._leaving(retry):
                await retry.hold(request)

    @asynccontextmanager
    async def _answering(self, context: Context) -> AsyncIterator[None]:
        """An error of colony in here ends the call with its status and code."""
        try:
            yield
        except ColonyError as error:
            if status_of(error) is grpc.StatusCode.INTERNAL:
                log.error(error.code, detail=str(error))
            elif isinstance(error, ServerUnavailable):
                Outage.report(log, error)
            await end(context, error)

    @asynccontextmanager
    async def _leaving(self, call: Conversation | Retry) -> AsyncIterator[None]:
        """A client that goes away in here takes along the runs that were to go with it."""
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.InternalError):
            # Nobody waits for this. A process that stops looks the same, and takes no run along.
            if not self._stopping.is_set():
                await asyncio.shield(call.take_along())
            # What was being written when the client went has failed: no error of ours.
            raise asyncio.CancelledError from None

    def _who(self, context: Context) -> Principal:
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        text = shown if isinstance(shown, str) else shown.decode(errors="replace")
        scheme, _, token = text.partition(" ")
        return self._principals.who(token.strip() if scheme.lower() == "bearer" else None)
