"""Addresses of sentinels, and what is made of what sentinels say."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
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


Told = Mapping[str, str | int] | str | Sequence[Mapping[str, str | int]]


@asynccontextmanager
async def sentinels(*told: Told | None) -> AsyncIterator[Sentinels]:
    """As many sentinels, each of which tells this of the service, or refuses, or is not there.

    Of a sequence it tells one after each question, and the last for good.
    """
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
    tells = [told] if told is None or isinstance(told, str | Mapping) else list(told)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        while line := await reader.readline():
            words = [await reader.readline() for _ in range(int(line[1:]) * 2)]
            asked = [word.strip().decode() for word in words[1::2]]
            if asked[0] == "SENTINEL":
                writer.write(_reply(tells.pop(0) if tells[1:] else tells[0], asked[1]))
            else:
                writer.write(b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    if told is None:
        server.close()
    yield f"{host}:{port}"
    server.close()
    await server.wait_closed()
    await asyncio.gather(*filter(None, serving))


def _reply(told: Mapping[str, str | int] | str | None, question: str) -> bytes:
    if not isinstance(told, Mapping):
        return f"-{told}\r\n".encode()
    words = [str(word) for pair in told.items() for word in pair]
    if question == "GET-MASTER-ADDR-BY-NAME":
        words = [str(told["ip"]), str(told.get("promoted", told["port"]))]
    parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word)}", word))]
    return ("\r\n".join(parts) + "\r\n").encode()


def state(port: int, *, epoch: int = 1, flags: str = "master") -> Mapping[str, str | int]:
    return {"name": "main", "ip": "10.0.0.1", "port": port, "flags": flags, "config-epoch": epoch}


def promoting(old: int, new: int, *, epoch: int, flags: str = "master") -> Told:
    """What the sentinel that leads a failover tells until the other replicas follow `new`."""
    return {**state(old, epoch=epoch, flags=flags), "promoted": new}


async def test_the_newest_failover_counts_whoever_was_first_to_answer() -> None:
    async with sentinels(state(1), state(2, epoch=3), state(1, epoch=2)) as asked:
        assert await asked.locate() == "redis://10.0.0.1:2/0"


@pytest.mark.parametrize("flags", ["master", "s_down,o_down,master"])
async def test_a_server_that_was_promoted_counts_before_the_failover_is_over(flags: str) -> None:
    leader = promoting(1, 2, epoch=2, flags=flags)
    for told in ([leader, state(1), state(1)], [leader, state(2, epoch=2)], [leader]):
        async with sentinels(*told) as asked:
            assert await asked.locate() == "redis://10.0.0.1:2/0"


async def test_an_address_is_never_older_than_the_epoch_it_is_weighed_by() -> None:
    # The failover happens between the two questions.
    for new, old in ((1, 2), (2, 1)):
        late = [state(old), state(new, epoch=2)]
        async with sentinels(late, state(new, epoch=2)) as asked:
            assert await asked.locate() == f"redis://10.0.0.1:{new}/0"


async def test_a_promoted_server_is_down_where_all_that_describe_it_find_so() -> None:
    down = state(2, epoch=2, flags="s_down,master")
    async with sentinels(promoting(1, 2, epoch=2), down, down) as asked:
        with pytest.raises(ServerUnavailable, match="down"):
            await asked.locate()


@pytest.mark.parametrize("odd", [1, 3])
async def test_most_sentinels_count_where_they_differ_over_one_failover(odd: int) -> None:
    for place in range(3):
        told = [state(2), state(2)]
        told.insert(place, state(odd))
        async with sentinels(*told) as asked:
            assert await asked.locate() == "redis://10.0.0.1:2/0"


async def test_the_order_of_the_sentinels_does_not_matter_where_as_many_say_one_as_another() -> (
    None
):
    async with sentinels(state(1), state(2)) as one, sentinels(state(2), state(1)) as other:
        assert await one.locate() == await other.locate()


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
