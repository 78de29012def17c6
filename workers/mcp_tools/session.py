"""The session: one connection at a time to an MCP server, owned by one task.

Connections are entered and left by that task alone, because the SDK's cancel scopes belong to the
task that entered them. A call is put into its queue and run by a task below it; whoever asked waits
for a future and may give up at any time.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, Subscription, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import JsonValue, ValidationError

from colony.body import explain
from colony.errors import ConnectionLost, NotConnected, ToolError
from colony.log import Logger
from colony.redaction import without_values
from workers.mcp_tools.loss import UNHEARD, Loss

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

CONNECT_S: Final = 30.0
SUBSCRIBE_S: Final = 5.0
STEADY_S: Final = 10.0
LEAST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
MAX_PAGES: Final = 100


Learn = Callable[[Sequence[types.Tool]], Awaitable[None]]


class Server(Protocol):
    """How a connection is made."""

    def connect(self, loss: Loss) -> AbstractAsyncContextManager["TransportStreams"]:
        """The messages from and to the server, as long as it is entered; `loss` tells its end."""


@dataclass(eq=False)
class _Call:
    tool: str
    arguments: Mapping[str, JsonValue]
    progress: ProgressFnT
    answer: asyncio.Future[types.CallToolResult]
    scope: anyio.CancelScope | None = None
    tries: int = 0
    unheard: bool = False

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def give_up(self) -> None:
        self.answer.cancel()
        if self.scope is not None:
            self.scope.cancel()


@dataclass
class _Standing:
    """How things stand between the owner and those who wait for it."""

    connected: bool = False
    closed: bool = False
    # The numbers of the newest attempt to connect, and of the last that failed.
    begun: int = 0
    failed: int = 0
    problem: str = "it was not reached yet"
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def change(self, *, connected: bool = False, problem: str = "") -> None:
        async with self.news:
            self.connected = connected
            if problem:
                self.problem, self.failed = problem, self.begun
            self.news.notify_all()


class Session:
    """A server that is called. It is reached again whenever the connection is lost.

    `learn` is called with the tools of every new connection before any call is made on it, and
    whenever the server says that they have changed. What goes wrong is told without `secrets`.
    """

    def __init__(
        self, server: Server, learn: Learn, log: Logger, *, secrets: Collection[str] = ()
    ) -> None:
        self._server = server
        self._secrets = secrets
        self._learn = learn
        self._log = log
        self._standing = _Standing()
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self._queue: asyncio.Queue[_Call] = asyncio.Queue()
        self._under_way: set[_Call] = set()
        self._owner: asyncio.Task[None] | None = None
        # What was last said of the server, which is not said again until there is news.
        self._said: tuple[str, str] | None = None

    async def open(self, patience_s: float) -> None:
        """The server is being reached. Returns once it was, or could not be, or in the end."""
        self._owner = asyncio.create_task(self._own(), name="mcp session")
        standing = self._standing
        try:
            async with asyncio.timeout(patience_s), standing.news:
                await standing.news.wait_for(lambda: standing.connected or standing.failed)
        except TimeoutError:
            self._log.warning("mcp_server_slow", waited_s=patience_s)

    async def close(self) -> None:
        """The connection is closed, and every call that waits has failed."""
        self._closing.set()
        if self._owner is None:
            return
        if not self._standing.connected:
            self._owner.cancel()
        try:
            await asyncio.wait([self._owner])
        finally:
            self._owner.cancel()

    async def call(
        self, tool: str, arguments: Mapping[str, JsonValue], progress: ProgressFnT
    ) -> types.CallToolResult:
        """What the server answers. Given up, the server is told that the call is cancelled.

        Raises NotConnected where it is not reached, ConnectionLost where the connection ends before
        the answer, ToolError where it refuses the call or answers nonsense.
        """
        await self.ready()
        call = _Call(tool, arguments, progress, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(call)
        try:
            return await call.answer
        finally:
            call.give_up()

    async def ready(self) -> None:
        """Return once there is a connection; raises NotConnected where one is tried for in vain."""
        standing = self._standing
        # One that is under way may have begun before the server was there.
        before = standing.begun
        self._wanted.set()
        async with standing.news:
            await standing.news.wait_for(
                lambda: standing.connected or standing.closed or standing.failed > before
            )
        if not standing.connected:
            raise NotConnected(detail=standing.problem)

    async def _own(self) -> None:
        pause_s, clock = LEAST_PAUSE_S, asyncio.get_running_loop().time
        try:
            while not self._closing.is_set():
                began = clock()
                was_up = await self._reach()
                # A server that ends as soon as it was started is down as well.
                steady = was_up and clock() - began > STEADY_S
                pause_s = LEAST_PAUSE_S if steady else min(2 * pause_s, LONGEST_PAUSE_S)
                await self._rest(pause_s)
        finally:
            self._standing.closed = True
            await self._settle(_told("the cell is being stopped"), retry=False)

    async def _reach(self) -> bool:
        """Hold one connection as long as it lasts; tells whether there was one."""
        self._wanted.clear()
        self._standing.begun += 1
        loss = Loss(self._secrets)
        try:
            await self._hold(loss)
        except Exception as error:  # What a stranger's server provokes in the SDK is unbounded.
            loss.tell(_sentence(error))
        was_up = self._standing.connected
        if not self._closing.is_set():
            self._warn("mcp_connection_lost" if was_up else "mcp_server_down", loss)
            await self._settle(loss, retry=was_up)
        return was_up

    def _warn(self, event: str, loss: Loss) -> None:
        if (event, loss.cause) != self._said:
            self._log.warning(event, detail=loss.reason)
        self._said = event, loss.cause

    async def _hold(self, loss: Loss) -> None:
        """One connection, from its beginning until it is lost or not wanted any more."""
        client = Client(
            self._server.connect(loss),
            cache=None,
            message_handler=self._hear,
            client_info=types.Implementation(name="colony", version=version("colony-broker")),
        )
        self._changed.clear()
        async with AsyncExitStack() as stack:
            # No cancel scope: the client opens scopes of its own in here that stay open.
            async with asyncio.timeout(CONNECT_S):
                await stack.enter_async_context(client)
                # Before they are listed, or a change in between would go unnoticed.
                changes = await self._subscribe(client, stack)
                tools = await _list(client)
            await self._learn(tools)
            await self._standing.change(connected=True)
            self._said = None
            self._log.info("mcp_server_reached", tools=len(tools), version=client.protocol_version)
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve, client, loss, group)
                group.start_soon(self._relearn, client)
                if changes is not None:
                    group.start_soon(self._follow, changes)
                await _first(loss.wait(), self._closing.wait())
                group.cancel_scope.cancel()

    async def _serve(self, client: Client, loss: Loss, group: TaskGroup) -> None:
        while True:
            call = await self._queue.get()
            if not call.answer.done():
                self._under_way.add(call)
                group.start_soon(self._perform, client, loss, call)

    async def _perform(self, client: Client, loss: Loss, call: _Call) -> None:
        # Left under way where the connection is lost: `_settle` knows why it was.
        call.tries += 1
        with anyio.CancelScope() as call.scope:
            try:
                result = await client.call_tool(
                    call.tool, dict(call.arguments), progress_callback=call.progress
                )
            except MCPError as error:
                call.unheard = error.code == UNHEARD
                if call.unheard or _is_loss(error) or loss.came:
                    loss.tell(error.message)
                    return
                call.fail(ToolError(detail=without_values(error.message, self._secrets)))
            except (RuntimeError, ValueError) as error:
                # The SDK's way to say that an answer is not what the protocol or the tool promises.
                why = explain(error) if isinstance(error, ValidationError) else str(error)
                call.fail(ToolError(detail=f"the server answered nonsense: {why}"))
            else:
                if not call.answer.done():
                    call.answer.set_result(result)
        if call.answer.done():
            self._under_way.discard(call)

    async def _settle(self, loss: Loss, *, retry: bool) -> None:
        """Nobody waits any more for a connection that is gone."""
        under_way, self._under_way = self._under_way, set()
        for call in under_way:
            if call.answer.done():
                continue
            if call.unheard and retry and call.tries < 2:
                self._queue.put_nowait(call)
            elif call.unheard:
                call.fail(NotConnected(detail=loss.reason))
            else:
                call.fail(ConnectionLost(detail=loss.reason))
        while not retry and not self._queue.empty():
            self._queue.get_nowait().fail(NotConnected(detail=loss.reason))
        # A connection that was there and is lost is tried for once more before anybody is refused.
        await self._standing.change(problem="" if retry else loss.reason)

    async def _rest(self, pause_s: float) -> None:
        await asyncio.sleep(LEAST_PAUSE_S)
        if self._queue.empty():
            jittered = pause_s * random.uniform(0.5, 1)
            await _first(self._wanted.wait(), self._closing.wait(), asyncio.sleep(jittered))

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    async def _subscribe(self, client: Client, stack: AsyncExitStack) -> Subscription | None:
        """The changes of the tools, as servers of the newer protocol tell them who asked for it."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return None
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                return await stack.enter_async_context(client.listen(tools_list_changed=True))
        except ListenNotSupportedError:
            return None
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            self._log.info("mcp_changes_not_told", detail=str(error))
            return None

    async def _follow(self, changes: Subscription) -> None:
        try:
            async for _ in changes:
                self._changed.set()
        except SubscriptionLost as error:
            self._log.info("mcp_changes_not_told", detail=str(error))

    async def _relearn(self, client: Client) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                tools = await _list(client)
            except (MCPError, ValueError) as error:
                self._log.warning("mcp_tools_not_listed", detail=str(error))
                continue
            await self._learn(tools)


async def _list(client: Client) -> list[types.Tool]:
    if client.server_capabilities.tools is None:
        return []
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


async def _first(*awaitables: Awaitable[Any]) -> None:
    """Wait until one of several is done, and end the others."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _is_loss(error: MCPError) -> bool:
    # Servers use the code for errors of their own as well.
    ends = ("SSE stream", "Connection closed")
    return error.code == types.CONNECTION_CLOSED and error.message.startswith(ends)


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: BaseException) -> str:
    leaf = _leaf(error)
    if isinstance(leaf, TimeoutError):
        return f"no connection within {CONNECT_S:.0f} s"
    return str(leaf) or type(leaf).__name__


def _told(reason: str) -> Loss:
    loss = Loss()
    loss.tell(reason)
    return loss
