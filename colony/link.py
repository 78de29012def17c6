"""Link: one connection to Redis that many tasks share.

What is asked in the same moment leaves in one write, so concurrent callers are pipelined for free.
A link knows which server it talks to; work that belongs to another one is refused unsent. It talks
to a server that takes writes or to none: a replica is left, as is one that sentinels took the
service from. Nothing is repeated behind the caller's back: a lost connection fails everything
under way.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from colony import faults
from colony.errors import ColonyError, ServerChanged, ServerFull, ServerUnavailable, ServerUnfit
from colony.lua.registry import Argument, Call
from colony.sentinel import Sentinels, names_sentinels

MIN_VERSION = (7, 0)
CONNECT_TIMEOUT_S = 5.0
SILENCE_S = 30.0
FOLLOW_S = 1.0

A_REPLICA = "it is a replica of another server"

# Errors of the server's state, not of the command: the same command may be sent again.
_PASSING = frozenset(
    "LOADING READONLY NOREPLICAS MISCONF MASTERDOWN BUSY CLUSTERDOWN TRYAGAIN".split()
)


class Link:
    """A connection to the server at `url`, opened when it is first used and again after a loss.

    Where `url` names sentinels, it is the server that they name when the connection is opened, and
    is left when they name another. A server that owes an answer for `silence_s` and gives none at
    all counts as lost.
    """

    def __init__(self, url: str, *, silence_s: float = SILENCE_S) -> None:
        self.url = url
        self.server: str | None = None
        self._sentinels = Sentinels(url) if names_sentinels(url) else None
        self._silence_s = silence_s
        self._closed = False
        self._answered = 0
        self._connection: AbstractConnection | None = None
        self._opening = asyncio.Lock()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._outgoing: list[bytes] = []
        self._wake = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def run(self, call: Call, *, server: str | None = None) -> Any:
        """The answer of a script, sent by its hash, and by its text where the server lacks it.

        With `server`, raises ServerChanged and sends nothing if that is not the server talked to.
        """
        if faults.armed:
            await faults.reach(f"before_{call.script.name}")
        tail = (len(call.keys), *call.keys, *call.arguments)
        try:
            answer = await self.command("EVALSHA", call.script.sha, *tail, server=server)
        except NoScriptError:
            answer = await self.command("EVAL", call.script.source, *tail, server=server)
        if faults.armed:
            await faults.reach(f"after_{call.script.name}")
        return answer

    async def command(self, *parts: Argument, server: str | None = None) -> Any:
        """The answer of one command, strings as bytes.

        Raises ServerUnavailable where the server cannot answer or forbids writes for now (where
        its memory is spent, ServerFull), and redis-py's ResponseError where the command is wrong.
        """
        await self.open()
        if server is not None and server != self.server:
            raise ServerChanged(expected=server, found=self.server)
        # Packed first: what cannot be sent must not wait for an answer.
        packed = _pack(parts)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._outgoing.append(packed)
        self._wake.set()
        reply = await answer
        if isinstance(reply, RedisError):
            if _word(reply) == "READONLY":
                # A server that was demoted stays so: the address may lead to another one by now.
                await self._lose(str(reply))
            raise _translate(reply)
        return reply

    async def open(self) -> str:
        """Connect where there is no connection, and return the id of the server.

        It is that of a process in one stretch of leading: who follows another server and leads
        again has what that one had, and is told apart from before.
        """
        if self._connection is None:
            async with self._opening:
                if self._connection is None:
                    await self._connect()
        if self.server is None:
            raise ServerUnavailable(detail="the connection was lost")
        return self.server

    async def drop(self, why: str) -> None:
        """Give up the connection, and fail whatever is under way; the next call opens another."""
        await self._lose(why)

    async def close(self) -> None:
        """Close the connection for good; whatever is under way fails with ServerUnavailable."""
        self._closed = True
        async with self._opening:
            tasks, self._tasks = self._tasks, ()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._lose("the link was closed")
            if self._sentinels is not None:
                await self._sentinels.close()

    async def _connect(self) -> None:
        if self._closed:
            raise ServerUnavailable(detail="the link was closed")
        place = self.url if self._sentinels is None else await self._sentinels.locate()
        options: dict[str, Any] = dict(parse_url(place))
        kind: type[AbstractConnection] = options.pop("connection_class", Connection)
        # A timeout of ours would cut blocking reads short and repeat them unasked.
        connection = kind(
            **options,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            protocol=2,
        )
        try:
            # A server that is frozen still accepts.
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.connect_check_health(
                    check_health=False, retry_socket_connect=False
                )
                await connection.send_command("INFO")
                info = _fields(await connection.read_response(disable_decoding=True))
        except (TimeoutError, RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            # redis-py hides a refusal behind an error of the connection.
            if isinstance(error.__cause__ or error, (AuthenticationError, NoPermissionError)):
                raise ServerUnfit(detail=str(error)) from error
            raise ServerUnavailable(detail=str(error) or "no answer") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if _follows_another(info):
            await connection.disconnect(nowait=True)
            raise ServerUnavailable(detail=A_REPLICA)
        self.server = f"{info['run_id']}-{info.get('master_replid', '')}"
        self._connection = connection
        self._tasks = (
            asyncio.create_task(self._write(connection), name="link-write"),
            asyncio.create_task(self._read(connection), name="link-read"),
            asyncio.create_task(self._listen(), name="link-listen"),
            asyncio.create_task(self._follow(place), name="link-follow"),
        )

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._outgoing = self._outgoing, []
            if not batch:
                continue
            try:
                await connection.send_packed_command(b"".join(batch), check_health=False)
            except (RedisError, OSError) as error:
                await self._lose(str(error))
                return

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            try:
                reply = await connection.read_response(disable_decoding=True)
            except ResponseError as error:
                reply = error
            except (RedisError, OSError) as error:
                await self._lose(str(error))
                return
            if not self._waiting:
                await self._lose(f"the server spoke unasked: {reply!r}")
                return
            self._answered += 1
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(reply)

    async def _listen(self) -> None:
        # No timer for each command: it is enough to see that answers keep coming.
        while True:
            answered, waiting = self._answered, bool(self._waiting)
            await asyncio.sleep(self._silence_s / 2)
            if waiting and self._waiting and self._answered == answered:
                await self._lose("the server owes answers and gives none")
                return

    async def _follow(self, place: str) -> None:
        # A server that is frozen while another takes over says nothing of it, and answers again
        # when it wakes: what is written to it then is lost.
        while self._sentinels is not None:
            await asyncio.sleep(FOLLOW_S)
            # While nobody can tell, it is taken to be the same.
            with suppress(ServerUnavailable, ServerUnfit):
                if await self._sentinels.locate() != place:
                    await self._lose("the sentinels name another server")
                    return

    async def _lose(self, detail: str) -> None:
        connection, self._connection, self.server = self._connection, None, None
        failed, self._waiting, self._outgoing = self._waiting, deque(), []
        for answer in failed:
            if not answer.done():
                answer.set_exception(ServerUnavailable(detail=detail))
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._tasks = ()
        if connection is not None:
            await connection.disconnect(nowait=True)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself. `problems` are what makes it unfit for a colony."""

    version: str
    policy: str
    durable: bool
    problems: tuple[str, ...]


async def server_facts(link: Link) -> ServerFacts:
    """What the server is.

    One that was demoted is left, and is ServerUnavailable: who only reads would not find out.
    """
    info = _fields(await link.command("INFO", "everything"))
    if _follows_another(info):
        await link.drop(A_REPLICA)
        raise ServerUnavailable(detail=A_REPLICA)
    kind = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info["redis_version"]
    policy = info.get("maxmemory_policy", "noeviction")
    problems = []
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        problems.append(f"the server is {version}; 7.0 or newer is needed")
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}; it would evict work: set it to noeviction")
    durable = info.get("aof_enabled") == "1"
    return ServerFacts(f"{kind} {version}", policy, durable, tuple(problems))


async def check_server(link: Link) -> None:
    """Returns if the server can carry a colony; raises ServerUnfit with the reason otherwise."""
    facts = await server_facts(link)
    if facts.problems:
        raise ServerUnfit(detail=facts.problems[0])


async def server_problems(link: Link, absent: str) -> list[ColonyError]:
    """What makes the server unfit, and why it takes nothing new for now, by its own word.

    `absent` is a key that is not there, and is not made. Raises ServerUnavailable where the server
    is away.
    """
    found: list[ColonyError] = []
    try:
        await check_server(link)
    except ServerUnfit as error:
        found.append(error)
    # Who may not write cannot find out.
    with suppress(ResponseError):
        try:
            await link.command("XADD", absent, "NOMKSTREAM", "*", "a", "b")
        except ServerUnavailable as error:
            if link.server is None:
                raise
            found.append(error)
    return found


def _follows_another(info: dict[str, str]) -> bool:
    return info.get("role", "master") != "master"


def _pack(parts: tuple[Argument, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]
    return packed


def _translate(error: RedisError) -> Exception:
    if _word(error) == "OOM":
        return ServerFull(detail=str(error).removeprefix("OOM ").rstrip("."))
    away = isinstance(error, (RedisConnectionError, RedisTimeoutError))
    return ServerUnavailable(detail=str(error)) if away or _word(error) in _PASSING else error


def _word(error: RedisError) -> str:
    # redis-py takes the word off the text of the errors it has a class for.
    return getattr(error, "status_code", None) or str(error).split(" ", 1)[0]


def _fields(info: bytes) -> dict[str, str]:
    lines = (line for line in info.decode().splitlines() if ":" in line)
    return dict(line.split(":", 1) for line in lines)
