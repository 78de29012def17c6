"""Addresses of sentinels, and what is made of what sentinels say."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from colony.errors import ServerUnavailable, ServerUnfit
from colony.sentinel import Sentinels, ServiceAddress, names_sentinels


def test_an_address_names_sentinels_a_service_and_how_its_server_is_reached() -> None:
    url = (
        "redis+sentinel://me:p%40ss@a:26379,b,[::1]:5/main/3?sentinel_password=s&socket_keepalive=1"
    )

    address = ServiceAddress.parse(url)

    assert names_sentinels(url)
    assert address.sentinels == (("a", 26379), ("b", 26379), ("::1", 5))
    assert address.service == "main"
    assert address.sentinel_login == {"password": "s"}
    assert address.server("10.0.0.1", 6379) == (
        "redis://me:p%40ss@10.0.0.1:6379/3?socket_keepalive=1"
    )
    assert address.server("fd00::1", 1) == "redis://me:p%40ss@[fd00::1]:1/3?socket_keepalive=1"


def test_an_address_may_leave_out_login_port_and_database() -> None:
    address = ServiceAddress.parse("redis+sentinel://a/main")

    assert address.sentinels == (("a", 26379),)
    assert address.server("b", 1) == "redis://b:1/0"


@pytest.mark.parametrize(
    "url",
    [
        "redis://a:1/main",
        "redis+sentinel://a:1",
        "redis+sentinel://a:1/",
        "redis+sentinel:///main",
        "redis+sentinel://a:1,/main",
        "redis+sentinel://a:secret/main",
        "redis+sentinel://:secret/with@a:1/main",
        "redis+sentinel://a:1/main/secret",
        "redis+sentinel://a:1/main/0/1",
    ],
)
def test_another_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="an address of sentinels is") as refused:
        ServiceAddress.parse(url)

    assert "secret" not in str(refused.value)


Told = Mapping[str, str | int] | str


@asynccontextmanager
async def sentinels(*told: Told | None) -> AsyncIterator[Sentinels]:
    """As many sentinels, each of which tells this of the service, or refuses, or is not there."""
    async with AsyncExitStack() as stack:
        places = [await stack.enter_async_context(sentinel(each)) for each in told]
        asked = Sentinels(f"redis+sentinel://{','.join(places)}/main")
        try:
            yield asked
        finally:
            await asked.close()


@asynccontextmanager
async def sentinel(told: Told | None) -> AsyncIterator[str]:
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        while line := await reader.readline():
            words = [await reader.readline() for _ in range(int(line[1:]) * 2)]
            writer.write(_reply(told) if words[1].strip() == b"SENTINEL" else b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    if told is None:
        server.close()
    yield f"{host}:{port}"
    server.close()
    await server.wait_closed()
    await asyncio.gather(*filter(None, serving))


def _reply(told: Told | None) -> bytes:
    if not isinstance(told, Mapping):
        return f"-{told}\r\n".encode()
    words = [str(word) for pair in told.items() for word in pair]
    parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word)}", word))]
    return ("\r\n".join(parts) + "\r\n").encode()


def state(port: int, *, epoch: int = 1, flags: str = "master") -> Mapping[str, str | int]:
    return {"name": "main", "ip": "10.0.0.1", "port": port, "flags": flags, "config-epoch": epoch}


async def test_the_newest_failover_counts_whoever_was_first_to_answer() -> None:
    async with sentinels(state(1), state(2, epoch=3), state(1, epoch=2)) as asked:
        assert await asked.locate() == "redis://10.0.0.1:2/0"


async def test_one_sentinel_is_enough_where_the_others_are_away_or_know_nothing() -> None:
    async with sentinels(None, "ERR No such master with that name", state(1)) as asked:
        assert await asked.locate() == "redis://10.0.0.1:1/0"
        assert await asked.locate() == "redis://10.0.0.1:1/0"


async def test_one_sentinel_that_alone_finds_the_server_down_is_not_believed() -> None:
    async with sentinels(state(1, flags="s_down,master"), state(1)) as asked:
        assert await asked.locate() == "redis://10.0.0.1:1/0"


@pytest.mark.parametrize("flags", ["s_down,master", "s_down,o_down,master"])
async def test_a_server_that_all_find_down_is_unavailable(flags: str) -> None:
    async with sentinels(state(1, flags=flags), state(1, flags=flags)) as asked:
        with pytest.raises(ServerUnavailable, match="down"):
            await asked.locate()


async def test_sentinels_that_are_away_or_know_no_such_service_are_told_of() -> None:
    async with sentinels(None, "ERR No such master with that name") as asked:
        with pytest.raises(ServerUnavailable, match=r"'main'.*No such master"):
            await asked.locate()


async def test_sentinels_that_refuse_the_login_are_not_to_be_waited_for() -> None:
    async with sentinels(None, "NOAUTH Authentication required.") as asked:
        with pytest.raises(ServerUnfit, match="Authentication required"):
            await asked.locate()


async def test_a_sentinel_that_does_not_answer_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("colony.sentinel.ASK_TIMEOUT_S", 0.1)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with sentinel(state(1)) as place:
        asked = Sentinels(f"redis+sentinel://127.0.0.1:{port},{place}/main")
        assert await asked.locate() == "redis://10.0.0.1:1/0"
        await asked.close()
    silent.close()
    await silent.wait_closed()
