"""The link on a real server, and on one that says what no healthy server does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from redis.exceptions import ResponseError

from colony.errors import ServerChanged, ServerFull, ServerUnavailable, ServerUnfit
from colony.keys import Keys
from colony.link import Link, check_server, server_problems
from colony.lua.registry import bind
from colony.testing.claims import eventually
from colony.testing.redis_server import RedisServer

KEYS = Keys("test")


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@asynccontextmanager
async def other(url: str) -> AsyncIterator[Link]:
    link = Link(url)
    yield link
    await link.close()


async def kill(link: Link, client: int) -> None:
    await link.command("CLIENT", "KILL", "ID", client)


async def stat(link: Link, name: str) -> int:
    info = (await link.command("INFO", "stats")).decode()
    return int(info.partition(f"{name}:")[2].split()[0])


async def blocked(link: Link) -> bool:
    return b"blocked_clients:0" not in await link.command("INFO", "clients")


async def lost(link: Link) -> bool:
    return link.server is None


async def test_what_is_asked_at_once_leaves_at_once(link: Link) -> None:
    before = await stat(link, "total_reads_processed")

    answers = await asyncio.gather(*(link.command("ECHO", str(n)) for n in range(200)))

    assert answers == [str(n).encode() for n in range(200)]
    assert await stat(link, "total_reads_processed") - before < 10


async def test_an_answer_nobody_waits_for_any_more_is_not_given_to_somebody_else(
    link: Link,
) -> None:
    await link.open()
    tasks = [asyncio.create_task(link.command("ECHO", str(n))) for n in range(9)]
    await asyncio.sleep(0)
    tasks[3].cancel()

    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(answers.pop(3), asyncio.CancelledError)
    assert answers == [str(n).encode() for n in (0, 1, 2, 4, 5, 6, 7, 8)]


async def test_what_cannot_be_sent_is_refused_and_shifts_no_answer(link: Link) -> None:
    await link.open()

    with pytest.raises(Exception, match=r"None|bytes"):
        await link.command("ECHO", None)  # type: ignore[arg-type]

    assert await link.command("ECHO", "still mine") == b"still mine"


async def test_a_script_the_server_does_not_know_is_sent_in_full(link: Link) -> None:
    slots = KEYS.slots("worker")
    call = bind("lease_slot", slots=slots, token="t", lease_ms=1000, about="{}")
    await link.run(call)
    await link.command("SCRIPT", "FLUSH")

    assert (await link.run(call))[0] == b"renewed"
    assert await link.command("SCRIPT", "EXISTS", call.script.sha) == [1]


async def test_a_wrong_command_is_an_error_and_the_connection_stays(link: Link) -> None:
    client = await link.command("CLIENT", "ID")

    with pytest.raises(ResponseError, match="unknown command"):
        await link.command("NOSUCHTHING")

    assert await link.command("CLIENT", "ID") == client


async def test_work_of_another_server_is_refused_unsent(link: Link) -> None:
    call = bind("lease_slot", slots=KEYS.slots("worker"), token="t", lease_ms=1000, about="{}")

    with pytest.raises(ServerChanged):
        await link.command("SET", "a", 1, server="another")
    with pytest.raises(ServerChanged):
        await link.run(call, server="another")

    assert await link.command("DBSIZE") == 0


async def test_after_a_restart_the_old_servers_work_is_refused(redis_binary: Path) -> None:
    with RedisServer.start(redis_binary) as server:
        async with other(server.url) as link:
            old = await link.open()
            server.restart()
            for _ in range(2):
                # The first call may find the connection that was lost.
                with pytest.raises((ServerUnavailable, ServerChanged)):
                    await link.command("SET", "a", 1, server=old)

            with pytest.raises(ServerChanged):
                await link.command("SET", "a", 1, server=old)

            assert await link.open() != old
            assert await link.command("DBSIZE") == 0


async def test_a_lost_connection_fails_everything_under_way_and_the_next_call_reconnects(
    link: Link, redis_url: str
) -> None:
    client = await link.command("CLIENT", "ID")
    server = await link.open()
    tasks = [asyncio.create_task(link.command("BLPOP", f"list-{n}", 0)) for n in range(3)]
    async with other(redis_url) as admin:
        await eventually(lambda: blocked(admin))
        await kill(admin, client)

        answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(answer, ServerUnavailable) for answer in answers)
    assert await link.command("CLIENT", "ID") != client
    assert await link.open() == server


async def test_a_blocking_read_outlives_the_time_out_of_redis_py(link: Link) -> None:
    client = await link.command("CLIENT", "ID")

    assert await link.command("BLPOP", "empty", 5.5) is None
    assert await link.command("CLIENT", "ID") == client


async def test_closing_fails_whoever_waits_and_is_for_good(link: Link, redis_url: str) -> None:
    await link.open()
    task = asyncio.create_task(link.command("BLPOP", "empty", 0))
    async with other(redis_url) as admin:
        await eventually(lambda: blocked(admin))

    await link.close()

    with pytest.raises(ServerUnavailable, match="closed"):
        await task
    with pytest.raises(ServerUnavailable, match="closed"):
        await link.command("PING")


async def test_a_close_while_it_connects_leaves_no_connection(redis_url: str) -> None:
    link = Link(redis_url)
    opening = asyncio.create_task(link.open())
    await asyncio.sleep(0)

    await link.close()

    await asyncio.gather(opening, return_exceptions=True)
    async with other(redis_url) as admin:
        assert len((await admin.command("CLIENT", "LIST")).splitlines()) == 1


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    async with other(f"unix://{tmp_path}/nothing.sock") as link:
        with pytest.raises(ServerUnavailable):
            await link.command("PING")


async def test_a_server_that_falls_silent_is_unavailable(redis_binary: Path) -> None:
    with RedisServer.start(redis_binary) as server:
        link = Link(server.url, silence_s=0.2)
        await link.open()
        server.pause()
        try:
            with pytest.raises(ServerUnavailable, match="owes"):
                await link.command("PING")
        finally:
            server.resume()
        assert await link.command("PING") == b"PONG"
        await link.close()


async def test_a_server_that_accepts_and_does_not_answer_is_unavailable(
    redis_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colony.link.CONNECT_TIMEOUT_S", 0.1)
    with RedisServer.start(redis_binary) as server:
        server.pause()
        try:
            async with other(server.url) as link:
                with pytest.raises(ServerUnavailable):
                    await link.command("PING")
        finally:
            server.resume()


async def test_a_dropped_connection_is_opened_again(link: Link) -> None:
    client = await link.command("CLIENT", "ID")

    await link.drop("for a test")

    assert await link.command("CLIENT", "ID") != client


async def test_a_wrong_password_is_not_a_server_to_wait_for(redis_url: str) -> None:
    async with other(redis_url.replace("unix://", "unix://nobody:wrong@")) as link:
        with pytest.raises(ServerUnfit):
            await link.command("PING")


async def test_a_full_server_is_unavailable_for_what_opens_and_open_for_what_drains(
    link: Link,
) -> None:
    lease = bind("lease_slot", slots=KEYS.slots("worker"), token="t", lease_ms=1, about="{}")
    publish = bind("publish_topology", topology="t", expected=0, digest="d", document="{}")
    await link.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(ServerFull, match="Redis is full: command not allowed"):
            await link.command("SET", "a", 1)
        with pytest.raises(ServerFull):
            await link.run(publish)

        assert (await link.run(lease))[0] == b"leased"
    finally:
        await link.command("CONFIG", "SET", "maxmemory", 0)
    assert await link.command("EXISTS", "a", "t") == 0


async def test_a_server_that_was_demoted_is_left_until_it_leads_again(redis_binary: Path) -> None:
    with RedisServer.start(redis_binary) as server:
        async with other(server.url) as link:
            await link.command("REPLICAOF", "127.0.0.1", "1")

            with pytest.raises(ServerUnavailable):
                await link.command("SET", "a", 1)
            with pytest.raises(ServerUnavailable, match="replica"):
                await link.command("GET", "a")

            with redis.Redis.from_url(server.url) as admin:
                admin.replicaof("NO", "ONE")
            assert await link.command("SET", "a", 1) == b"OK"


async def test_who_only_reads_leaves_a_server_that_was_demoted_when_it_is_checked(
    redis_binary: Path,
) -> None:
    with RedisServer.start(redis_binary) as server:
        async with other(server.url) as link:
            await link.command("REPLICAOF", "127.0.0.1", "1")
            assert await link.command("GET", "a") is None

            with pytest.raises(ServerUnavailable, match="replica"):
                await check_server(link)

            assert link.server is None


async def test_what_was_read_before_a_server_followed_another_is_not_settled_after_it(
    redis_binary: Path,
) -> None:
    """It is the same process, but what it held then is gone."""
    with RedisServer.start(redis_binary) as server:
        async with other(server.url) as link:
            before = await link.open()
            await link.command("REPLICAOF", "127.0.0.1", "1")
            with redis.Redis.from_url(server.url) as admin:
                admin.replicaof("NO", "ONE")
            await link.drop("for a test")

            with pytest.raises(ServerChanged):
                await link.command("SET", "a", 1, server=before)

            assert await link.command("DBSIZE") == 0


@asynccontextmanager
async def impostor(info: str, *replies: str) -> AsyncIterator[str]:
    """The address of a server that answers INFO, then these replies, whatever it is asked."""
    waiting = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = [line]
                for _ in range(int(line[1:]) * 2):
                    words.append(await reader.readline())
                if words[2].strip().upper() == b"INFO":
                    writer.write(f"${len(info)}\r\n{info}\r\n".encode())
                elif words[2].strip().upper() == b"CLIENT":
                    writer.write(b"+OK\r\n")
                else:
                    writer.write((waiting.pop(0) + "\r\n").encode())
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"redis://{host}:{port}"
    server.close()
    await server.wait_closed()


INFO = "run_id:abc\r\nredis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n"


@pytest.mark.parametrize(
    "word",
    ["LOADING", "NOREPLICAS", "MISCONF", "MASTERDOWN", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "OOM"],
)
async def test_a_state_of_the_server_is_never_the_fault_of_what_was_asked(word: str) -> None:
    async with impostor(INFO, f"-{word} for a while", "+PONG") as url, other(url) as link:
        with pytest.raises(ServerUnavailable):
            await link.command("PING")

        assert await link.command("PING") == b"PONG"


async def test_a_server_that_speaks_unasked_is_left(redis_url: str) -> None:
    async with impostor(INFO, "+PONG\r\n+PONG", "+PONG") as url, other(url) as link:
        assert await link.command("PING") == b"PONG"
        await eventually(lambda: lost(link))

        assert await link.command("PING") == b"PONG"


async def test_a_server_that_fits_is_taken(link: Link) -> None:
    await check_server(link)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (INFO.replace("7.0.0", "6.2.14"), "6.2.14"),
        (INFO.replace("noeviction", "allkeys-lru"), "evict"),
    ],
)
async def test_a_server_that_is_too_old_or_evicts_is_refused(info: str, reason: str) -> None:
    async with impostor(info) as url, other(url) as link:
        with pytest.raises(ServerUnfit, match=reason):
            await check_server(link)


async def test_what_is_wrong_with_a_server_is_asked_of_it_and_leaves_no_key(link: Link) -> None:
    settings = {"maxmemory": "1", "maxmemory-policy": "volatile-lru"}
    assert await server_problems(link, "absent") == []
    try:
        for setting, value in settings.items():
            await link.command("CONFIG", "SET", setting, value)
        found = await server_problems(link, "absent")
    finally:
        await link.command("CONFIG", "SET", "maxmemory", 0)
        await link.command("CONFIG", "SET", "maxmemory-policy", "noeviction")

    assert [error.code for error in found] == ["server_unfit", "server_full"]
    assert await server_problems(link, "absent") == []
    assert await link.command("DBSIZE") == 0


async def test_a_server_without_its_replicas_says_that_it_takes_nothing(link: Link) -> None:
    await link.command("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        [found] = await server_problems(link, "absent")
    finally:
        await link.command("CONFIG", "SET", "min-replicas-to-write", 0)

    assert found.code == "server_unavailable"
    assert "replicas" in str(found)
