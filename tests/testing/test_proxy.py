"""The proxy: what a test commands happens to the bytes that pass, once, and to no others."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from colony.errors import ServerUnavailable
from colony.link import Link
from colony.lua.registry import Call, bind
from colony.testing.claims import eventually
from colony.testing.proxy import Proxy, command, script
from colony.testing.redis_server import RedisServer


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(redis_url) as started:
        yield started


@pytest.fixture
async def link(proxy: Proxy) -> AsyncIterator[Link]:
    link = Link(proxy.url)
    yield link
    await link.close()


@pytest.fixture
async def direct(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


def lease(token: str) -> Call:
    return bind("lease_slot", slots="slots", token=token, lease_ms=60_000, about="{}")


async def test_what_nobody_touches_passes_as_it_is(link: Link, direct: Link) -> None:
    large = bytes(range(256)) * 4096

    answers = await asyncio.gather(
        link.command("SET", "large", large), *(link.command("ECHO", str(n)) for n in range(300))
    )

    assert answers[1:] == [str(n).encode() for n in range(300)]
    assert await link.command("GET", "large") == large == await direct.command("GET", "large")
    assert await link.command("MGET", "none", "large") == [None, large]


async def test_a_server_on_a_port_is_reached_with_its_password(redis_binary) -> None:
    with RedisServer.start(redis_binary, socket=False) as server:
        async with Proxy(server.url) as proxy:
            link = Link(proxy.url)
            assert await link.command("PING") == b"PONG"
            await link.close()


async def test_a_lost_reply_is_that_of_its_command_and_of_no_other(
    proxy: Proxy, link: Link, direct: Link
) -> None:
    await link.open()
    lost = proxy.lose_reply(command("INCR"))

    before, asked, after = await asyncio.gather(
        link.command("ECHO", "before"),
        link.command("INCR", "n"),
        link.command("SET", "after", 1),
        return_exceptions=True,
    )

    assert lost.is_set()
    assert before == b"before"
    assert isinstance(asked, ServerUnavailable)
    assert isinstance(after, ServerUnavailable)
    # The server did what it was asked.
    assert await direct.command("MGET", "n", "after") == [b"1", b"1"]
    assert await link.command("INCR", "n") == 2


async def test_a_reply_that_tells_nothing_is_not_the_one_that_is_lost(
    proxy: Proxy, link: Link
) -> None:
    lost = proxy.lose_reply(command("GET"), telling=lambda reply: reply == b"yes")

    assert await link.command("GET", "a") is None
    assert not lost.is_set()

    await link.command("SET", "a", "yes")
    with pytest.raises(ServerUnavailable):
        await link.command("GET", "a")
    assert lost.is_set()


async def test_the_lost_reply_of_a_script_is_its_answer_and_not_that_it_is_unknown(
    proxy: Proxy, link: Link
) -> None:
    await link.command("SCRIPT", "FLUSH")
    lost = proxy.lose_reply(script("lease_slot"))

    with pytest.raises(ServerUnavailable):
        await link.run(lease("a"))

    assert lost.is_set()
    assert await link.run(lease("a")) == [b"renewed", 0]
    assert await link.run(lease("b")) == [b"leased", 1]


async def test_a_command_that_is_cut_is_not_done(proxy: Proxy, link: Link, direct: Link) -> None:
    cut = proxy.cut_within(command("SET"))

    with pytest.raises(ServerUnavailable):
        await link.command("SET", "a", "x" * 100_000)

    assert cut.is_set()
    assert await direct.command("EXISTS", "a") == 0
    assert await link.command("SET", "a", 1) == b"OK"


async def test_a_cut_fails_what_is_under_way_and_the_next_connection_passes(
    proxy: Proxy, link: Link
) -> None:
    await link.open()
    waiting = asyncio.create_task(link.command("BLPOP", "nothing", 0))
    await asyncio.sleep(0)

    proxy.cut()

    with pytest.raises(ServerUnavailable):
        await waiting
    assert await link.command("PING") == b"PONG"


async def test_nobody_passes_while_the_proxy_refuses(proxy: Proxy, link: Link) -> None:
    await link.open()
    proxy.refuse()
    for _ in range(3):
        with pytest.raises(ServerUnavailable):
            await link.command("PING")

    await proxy.admit()

    assert await link.command("PING") == b"PONG"
    assert proxy.connections == 1


async def test_a_reply_that_is_delayed_is_late(proxy: Proxy, link: Link) -> None:
    await link.open()
    proxy.delay(0.1)

    asked = time.monotonic()
    assert await link.command("PING") == b"PONG"

    assert time.monotonic() - asked >= 0.1


async def test_what_is_held_is_done_and_answered_when_it_is_released(
    proxy: Proxy, link: Link, direct: Link
) -> None:
    await link.open()
    proxy.hold()
    asked = asyncio.create_task(link.command("INCR", "n"))
    await eventually(lambda: direct.command("GET", "n"))
    assert not asked.done()

    proxy.release()

    assert await asked == 1


async def test_a_link_leaves_a_server_whose_answers_are_held_too_long(
    proxy: Proxy, direct: Link
) -> None:
    link = Link(proxy.url, silence_s=0.1)
    await link.open()
    proxy.hold()

    with pytest.raises(ServerUnavailable, match="owes"):
        await link.command("INCR", "n")

    proxy.release()
    assert await direct.command("GET", "n") == b"1"
    assert await link.command("INCR", "n") == 2
    await link.close()


async def test_a_server_that_is_away_is_away_behind_the_proxy_too(redis_binary) -> None:
    with RedisServer.start(redis_binary) as server:
        async with Proxy(server.url) as proxy:
            link = Link(proxy.url)
            await link.open()
            await asyncio.to_thread(server.kill)
            with pytest.raises(ServerUnavailable):
                await link.command("PING")

            await asyncio.to_thread(server.restart)

            assert await link.command("PING") == b"PONG"
            await link.close()
