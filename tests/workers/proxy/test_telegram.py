"""A Telegram bot: what people write is born once, what they are answered is sent in order."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import httpx
import pytest
from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.errors import PlatformError
from colony.testing.claims import eventually
from colony.testing.host import RecordingHost
from colony.testing.telegram_server import Poll, Sent, TelegramServer
from tests.workers.proxy import proxies
from tests.workers.proxy.proxies import Pauses, answer, running, source
from workers.proxy import Proxy
from workers.proxy.cursor import SEEN_AT, SILENCE_MS


@pytest.fixture
def server() -> Iterator[TelegramServer]:
    with TelegramServer() as server:
        yield server


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def started(
    server: TelegramServer, pauses: Pauses, **params: object
) -> AbstractAsyncContextManager[Proxy]:
    given = {"bot_token": server.token, "base_url": server.base_url, "long_poll_request_secs": 1}
    return proxies.started(pauses, **{**given, **params})


# What people write


async def test_a_text_is_born_with_where_it_came_from(
    server: TelegramServer, pauses: Pauses
) -> None:
    update = server.say("hello", chat_id=-5, user_id=50)
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: found.births)

    (born,) = found.births
    assert (born.mark, born.session) == (update, "-5")
    assert born.emission.body == Body.of(Entry.say("user", "hello"))
    assert born.emission.hop == {
        "platform": "telegram",
        "chat_id": -5,
        "user_id": 50,
        "message_id": 1,
    }


async def test_an_update_is_confirmed_by_the_poll_after_its_birth(
    server: TelegramServer, pauses: Pauses
) -> None:
    update = server.say("hello")
    found = source()
    async with started(server, pauses) as proxy:
        async with running(proxy, found):
            await eventually(lambda: not server.unconfirmed)

    assert [poll.offset for poll in server.polls[:2]] == [None, update + 1]
    assert len(found.births) == 1


async def test_what_was_born_and_not_confirmed_is_not_born_again(
    server: TelegramServer, pauses: Pauses
) -> None:
    first = server.say("first")
    found = source()
    async with started(server, pauses) as proxy:
        # As if the process had died between the birth and the next poll.
        await proxy.platform.polling.round(found)  # type: ignore[attr-defined]
        assert [update["update_id"] for update in server.unconfirmed] == [first]
        server.say("second")
        async with running(proxy, found):
            await eventually(lambda: len(found.births) == 2)

    texts = [born.emission.body.entries[0].text for born in found.births]
    assert texts == ["first", "second"]


@pytest.mark.parametrize(
    "update",
    [
        {"message": {"message_id": 3, "chat": {"id": 1}, "photo": []}},
        {"message": {"message_id": 3, "chat": {"id": 1}, "text": ""}},
        {"message": {"nothing": "known"}},
        {"edited_message": {"message_id": 3, "chat": {"id": 1}, "text": "changed"}},
        {},
    ],
)
async def test_what_is_no_text_is_confirmed_and_not_born(
    server: TelegramServer, pauses: Pauses, update: dict[str, object]
) -> None:
    server.push(update)  # type: ignore[arg-type]
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: not server.unconfirmed)

    assert found.births == []


async def test_half_a_surrogate_pair_does_not_stop_the_bot(
    server: TelegramServer, pauses: Pauses
) -> None:
    # Sent as an escape, which JSON allows.
    server.push({"message": {"message_id": 1, "chat": {"id": 1}, "text": "\ud83d"}})
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: found.births)

    assert found.births[0].emission.body.entries[0].text


async def test_chats_that_are_not_listed_are_not_heard(
    server: TelegramServer, pauses: Pauses
) -> None:
    server.say("stranger", chat_id=1)
    server.say("friend", chat_id=2)
    found = source()
    async with started(server, pauses, allowed_chats=[2]) as proxy, running(proxy, found):
        await eventually(lambda: not server.unconfirmed)

    assert [born.emission.hop["chat_id"] for born in found.births] == [2]


async def test_only_who_leads_polls(server: TelegramServer, pauses: Pauses) -> None:
    found = source()
    found.leading = False
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: len(pauses.waited) > 3)
        assert server.polls == []
        found.leading = True
        await eventually(lambda: server.polls)


async def test_numbers_that_begin_again_lower_after_a_week_are_not_lost(
    server: TelegramServer, pauses: Pauses
) -> None:
    server.say("before")
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: bool(found.births) and not server.unconfirmed)
        text = {"message_id": 9, "chat": {"id": 1}, "text": "after"}
        found.now += SILENCE_MS + int(found.leaves[f"cursor.1.{SEEN_AT}"]) + 1
        polls = len(server.polls)
        await eventually(lambda: server.polls[polls:] != [] and server.polls[-1].offset is None)
        server.push({"message": text}, update_id=5)
        server.push({"message": text}, update_id=6)
        await eventually(lambda: len(found.births) == 3 and not server.unconfirmed)

    assert [born.mark for born in found.births] == [1000, 5, 6]
    assert server.polls[-1].offset == 7


@pytest.mark.parametrize(
    ("status", "level", "waits"),
    [
        (401, "error", [60.0, 120.0]),
        (409, "warning", [5.0, 10.0]),
        (502, "warning", [1.0, 2.0]),
    ],
)
async def test_a_poll_that_fails_is_told_once_and_repeated_ever_later(
    server: TelegramServer, pauses: Pauses, status: int, level: str, waits: list[float]
) -> None:
    server.fail_next("getUpdates", status, "why")
    server.fail_next("getUpdates", status, "why")
    server.say("hello")
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: found.births)

    assert pauses.waited == waits
    told = [line for line in found.logged if line["event"] == "poll_failed"]
    assert [(line["log_level"], "why" in str(line["detail"])) for line in told] == [(level, True)]
    assert [line["event"] for line in found.logged][-1] == "poll_answered"


async def test_telegrams_own_wait_is_waited(server: TelegramServer, pauses: Pauses) -> None:
    server.fail_next("getUpdates", 429, retry_after=17)
    server.say("hello")
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: found.births)

    assert pauses.waited == [17.0]


async def test_a_second_poller_gets_a_conflict_and_loses_nothing(
    server: TelegramServer, pauses: Pauses
) -> None:
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: server.polls)
        async with httpx.AsyncClient() as other:
            await other.post(f"{server.base_url}/bot{server.token}/getUpdates", json={})
        server.say("hello")
        await eventually(lambda: found.births)

    assert "Conflict: terminated by other getUpdates request" in server.refused


async def test_without_a_token_nobody_is_asked(server: TelegramServer, pauses: Pauses) -> None:
    found = source()
    async with started(server, pauses, bot_token="") as proxy:
        await proxy.run(found)
        host = RecordingHost.of("proxy")
        (error,) = await proxy.handle(answer("hi", chat_id=1), host)

    assert (server.polls, server.refused) == ([], [])
    assert [line["event"] for line in found.logged] == ["proxy_idle"]
    assert error.hop["error_code"] == "send_failed"


async def test_the_token_is_in_no_line_of_any_log(
    server: TelegramServer, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.fail_next("getUpdates", 500)
    server.say("hello")
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: found.births)
    async with started(server, pauses, base_url="http://127.0.0.1:1") as proxy:
        await proxy.handle(answer("hi", chat_id=1), RecordingHost.of("proxy"))

    assert server.token not in caplog.text + str(found.logged)


# What they are answered


async def test_the_last_text_of_the_assistant_is_sent_and_kept(
    server: TelegramServer, pauses: Pauses
) -> None:
    host = RecordingHost.of("proxy")
    async with started(server, pauses) as proxy:
        assert await proxy.handle(answer("the answer", chat_id=7), host) == []

    assert server.sent == [Sent(7, "the answer")]
    assert host.kept[0].body.last("assistant") == Entry.say("assistant", "the answer")
    assert host.kept[0].hop == {"platform": "telegram", "parts": 1}


async def test_a_long_answer_is_sent_in_parts_in_order(
    server: TelegramServer, pauses: Pauses
) -> None:
    text = "\n\n".join(f"{n} " + "\U0001f600" * 1500 for n in range(5))
    async with started(server, pauses) as proxy:
        await proxy.handle(answer(text, chat_id=7), RecordingHost.of("proxy"))

    assert [sent.text.split(" ")[0] for sent in server.sent] == ["0", "1", "2", "3", "4"]
    assert server.refused == []


async def test_a_part_that_was_sent_is_not_sent_again(
    server: TelegramServer, pauses: Pauses
) -> None:
    host = RecordingHost.of("proxy")
    text = f"{'a' * 4000}\n\n{'b' * 4000}"
    async with started(server, pauses, retry_budget_ms=0) as proxy:
        server.fail_next("sendMessage", 502)
        await proxy.handle(answer(text, chat_id=7), host)
        host.journal.clear()
        await proxy.handle(answer("a" * 4000, chat_id=7), host)
        # The next handle of the envelope whose first part is out.
        await proxy.handle(answer(text, chat_id=7), host)

    assert [sent.text[0] for sent in server.sent] == ["a", "b"]


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        (answer("x"), "missing_chat_id"),
        (answer("x", chat_id="7"), "missing_chat_id"),
        (answer("x", chat_id=True), "missing_chat_id"),
        (answer(" ", chat_id=7), "missing_assistant_turn"),
        (
            answer("x", chat_id=7).model_copy(update={"body": Body.of(Entry.say("user", "q"))}),
            "missing_assistant_turn",
        ),
        (
            answer("x", chat_id=7).model_copy(update={"body": Body(system={"a": "b"})}),
            "invalid_body",
        ),
    ],
)
async def test_what_cannot_be_delivered_says_why(
    server: TelegramServer, pauses: Pauses, envelope: Envelope, code: str
) -> None:
    host = RecordingHost.of("proxy")
    async with started(server, pauses) as proxy:
        (error,) = await proxy.handle(envelope, host)

    assert error.hop["error_code"] == code
    assert error.hop["msg_type"] == "proxy_inbound_error"
    assert error.body == Body.of()
    assert (host.kept, server.sent) == ([], [])


async def test_a_send_is_repeated_where_it_certainly_was_not_done(
    server: TelegramServer, pauses: Pauses
) -> None:
    server.fail_next("sendMessage", 429, retry_after=3)
    async with started(server, pauses) as proxy:
        assert await proxy.handle(answer("hi", chat_id=7), RecordingHost.of("proxy")) == []

    assert pauses.waited == [3.0]
    assert server.sent == [Sent(7, "hi")]


@pytest.mark.parametrize(("status", "wait"), [(400, None), (403, None), (502, None), (429, 3600)])
async def test_a_send_is_not_repeated_where_nobody_knows_or_it_takes_too_long(
    server: TelegramServer, pauses: Pauses, status: int, wait: int | None
) -> None:
    server.fail_next("sendMessage", status, "why", retry_after=wait)
    async with started(server, pauses) as proxy:
        (error,) = await proxy.handle(answer("hi", chat_id=7), RecordingHost.of("proxy"))

    assert (error.hop["error_code"], error.hop["parts_sent"]) == ("send_failed", 0)
    assert "why" in str(error.hop["detail"])
    assert (pauses.waited, server.sent) == ([], [])


async def test_a_probe_names_the_bot(server: TelegramServer, pauses: Pauses) -> None:
    async with started(server, pauses) as proxy:
        assert await proxy.probe() == "Telegram knows the bot test_bot"
    async with started(server, pauses, bot_token="2:wrong") as proxy:
        with pytest.raises(PlatformError, match="401: Unauthorized"):
            await proxy.probe()


def test_params_of_trees_written_for_another_system_are_taken() -> None:
    Proxy.Params.model_validate(
        {
            "bot_token": "1:x",
            "emit_to": "../prep",
            "base_url": "https://api.telegram.org",
            "long_poll_timeout_ms": 35_000,
            "long_poll_request_secs": 30,
            "send_timeout_ms": 10_000,
            "query_timeout_ms": 5_000,
        }
    )


def test_a_poll_tells_how_long_it_waits() -> None:
    with pytest.raises(ValueError, match="long_poll_timeout_ms"):
        Proxy.Params(long_poll_request_secs=40)


async def test_a_poll_asks_for_new_messages_and_waits_for_them(
    server: TelegramServer, pauses: Pauses
) -> None:
    found = source()
    async with started(server, pauses, long_poll_request_secs=2) as proxy, running(proxy, found):
        await eventually(lambda: server.polls)

    assert server.polls[0] == Poll(None, 2)


async def test_another_bot_begins_at_its_own_numbers_and_loses_nothing(
    server: TelegramServer, pauses: Pauses
) -> None:
    server.say("to the first")
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: not server.unconfirmed)
    with TelegramServer("2:other", first_update=5) as other:
        other.say("to the second")
        async with started(other, pauses) as proxy, running(proxy, found):
            await eventually(lambda: not other.unconfirmed)
    # The same bot with a token that was drawn anew goes on where it was.
    server.token = "1:anew"
    async with started(server, pauses) as proxy, running(proxy, found):
        polls = len(server.polls)
        await eventually(lambda: len(server.polls) > polls)

    assert [born.emission.body.entries[0].text for born in found.births] == [
        "to the first",
        "to the second",
    ]
    assert server.polls[polls].offset == 1001


@pytest.mark.parametrize(
    "update",
    [
        {"message": {"message_id": 1, "chat": {"id": 2**70}, "text": "far"}},
        {"message": {"message_id": 1, "chat": {"id": "x"}, "text": "odd"}},
        {"message": {"message_id": 2**64, "chat": {"id": 1}, "text": "far"}},
        {"message": []},
        {"edited_message": {"message_id": 1, "chat": {"id": 1}, "text": "edited"}},
    ],
)
async def test_an_update_that_no_birth_can_be_made_of_keeps_none_from_being_born(
    server: TelegramServer, pauses: Pauses, update: dict[str, JsonValue]
) -> None:
    server.push(update)
    server.say("after")
    found = source()
    async with started(server, pauses) as proxy, running(proxy, found):
        await eventually(lambda: not server.unconfirmed)

    assert [born.emission.body.entries[0].text for born in found.births][-1:] == ["after"]


async def test_a_server_that_holds_no_poll_is_asked_once_a_second(
    server: TelegramServer, pauses: Pauses
) -> None:
    async with (
        started(server, pauses, long_poll_request_secs=0) as proxy,
        running(proxy, source()),
    ):
        await eventually(lambda: len(server.polls) > 3)

    assert len(pauses.waited) >= 3
    assert all(0.5 < waited <= 1 for waited in pauses.waited)


async def test_a_limit_that_asks_for_no_wait_is_waited_for_all_the_same(
    server: TelegramServer, pauses: Pauses
) -> None:
    for _ in range(20):
        server.fail_next("sendMessage", 429, "why", retry_after=0)
    async with started(server, pauses, retry_budget_ms=5_000) as proxy:
        (error,) = await proxy.handle(answer("hi", chat_id=7), RecordingHost.of("proxy"))

    assert error.hop["error_code"] == "send_failed"
    assert pauses.waited == [1.0] * 5


async def test_whatever_is_said_of_a_refusal_can_be_sent_on(
    server: TelegramServer, pauses: Pauses
) -> None:
    server.fail_next("sendMessage", 400, "half \ud83d of a pair")
    async with started(server, pauses) as proxy:
        (error,) = await proxy.handle(answer("hi", chat_id=7), RecordingHost.of("proxy"))

    assert "half ? of a pair" in str(error.hop["detail"])
