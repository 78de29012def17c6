"""The Telegram server does what bots rely on, and refuses what they get wrong."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from colony.testing.claims import eventually
from colony.testing.telegram_server import TEXT_LIMIT, Poll, Sent, TelegramServer


@pytest.fixture
def server() -> Iterator[TelegramServer]:
    with TelegramServer(first_update=5) as server:
        yield server


@pytest.fixture
async def bot(server: TelegramServer) -> AsyncIterator[httpx.AsyncClient]:
    base_url = f"{server.base_url}/bot{server.token}"
    async with httpx.AsyncClient(base_url=base_url, timeout=20) as client:
        yield client


async def updates(bot: httpx.AsyncClient, **asked: Any) -> list[int]:
    told = (await bot.post("/getUpdates", json=asked)).json()
    return [update["update_id"] for update in told["result"]]


async def test_updates_come_again_until_an_offset_confirms_them(
    server: TelegramServer, bot: httpx.AsyncClient
) -> None:
    assert [server.say("a"), server.say("b")] == [5, 6]

    assert await updates(bot) == [5, 6]
    assert await updates(bot) == [5, 6]
    assert await updates(bot, offset=6) == [6]
    assert await updates(bot) == [6]
    assert await updates(bot, offset=7) == []
    assert server.polls[2] == Poll(6, 0)


async def test_a_poll_waits_for_an_update(server: TelegramServer, bot: httpx.AsyncClient) -> None:
    waiting = asyncio.create_task(updates(bot, timeout=20))
    await eventually(lambda: server.polls)
    assert not waiting.done()
    server.say("a")

    assert await waiting == [5]


async def test_of_two_polls_the_first_is_ended(
    server: TelegramServer, bot: httpx.AsyncClient
) -> None:
    first = asyncio.create_task(bot.post("/getUpdates", json={"timeout": 20}))
    await eventually(lambda: server.polls)
    assert not first.done()
    assert await updates(bot) == []

    assert (await first).status_code == 409


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"chat_id": 1, "text": ""}, "message text is empty"),
        ({"chat_id": 1, "text": " \n"}, "message text is empty"),
        ({"chat_id": 1, "text": "x" * (TEXT_LIMIT + 1)}, "message is too long"),
        ({"chat_id": 1, "text": "\U0001f600" * (TEXT_LIMIT // 2 + 1)}, "message is too long"),
        ({"text": "x"}, "chat not found"),
        ({"chat_id": "x", "text": "x"}, "chat not found"),
    ],
)
async def test_a_message_that_cannot_be_is_refused(
    server: TelegramServer, bot: httpx.AsyncClient, asked: dict[str, Any], why: str
) -> None:
    reply = await bot.post("/sendMessage", json=asked)

    assert (reply.status_code, reply.json()["ok"]) == (400, False)
    assert why in reply.json()["description"]
    assert server.sent == []


async def test_a_message_is_kept(server: TelegramServer, bot: httpx.AsyncClient) -> None:
    text = "\U0001f600" * (TEXT_LIMIT // 2)
    reply = await bot.post("/sendMessage", json={"chat_id": -1, "text": text})

    assert reply.json()["ok"]
    assert server.sent == [Sent(-1, text)]


async def test_a_failure_that_is_planned_comes_once(
    server: TelegramServer, bot: httpx.AsyncClient
) -> None:
    server.fail_next("getMe", 429, "slow down", retry_after=3)
    replies = [await bot.get("/getMe") for _ in range(2)]

    assert [reply.status_code for reply in replies] == [429, 200]
    assert replies[0].json()["parameters"] == {"retry_after": 3}


async def test_another_token_is_not_known(server: TelegramServer) -> None:
    async with httpx.AsyncClient() as client:
        reply = await client.get(f"{server.base_url}/bot2:x/getMe")

    assert reply.status_code == 401
