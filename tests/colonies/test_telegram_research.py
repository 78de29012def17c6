"""The research assistant on Telegram: whoever asks in the chat is answered in the chat."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from colony.testing.harness import Harness
from colony.testing.model_server import ModelRequest, ModelServer
from colony.testing.telegram_server import TelegramServer
from colony.topology.load import load
from colony.trees import shipped
from tests.colonies.conftest import Colony
from tests.workers.web_server import Reply, WebServer, serving

TREE = "telegram-research"
PATIENCE_S = 60.0
Script = Callable[[ModelRequest], Mapping[str, Any]]


def call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "id": call_id}


def question(request: ModelRequest) -> str:
    *_, asked = (m for m in request.messages if m["role"] == "user")
    return str(asked["content"])


def results(request: ModelRequest) -> dict[str, str]:
    told = (m for m in request.messages if m["role"] == "tool")
    return {str(m["tool_call_id"]): str(m["content"]) for m in told}


@dataclass
class World:
    """The tree between a chat, a model, a search service and pages, all of this host."""

    chat: TelegramServer
    web: WebServer
    colony: Colony
    asked: list[ModelRequest] = field(default_factory=list)

    async def answers(self, count: int) -> list[str]:
        """The texts in the chat, once there are so many."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.chat.sent) < count:
            assert time.monotonic() < deadline, self.chat.refused
            await self.colony.harness.finish()
            await asyncio.sleep(0.005)
        await self.colony.harness.finish()
        return [sent.text for sent in self.chat.sent]

    async def assert_clean(self, count: int) -> None:
        """So many questions ended well, and left no dead letter."""
        traces = self.colony.harness.traces
        ids = await traces.ids("ended", limit=99)
        assert [(await traces.get(i)).cause for i in ids] == ["completed"] * count
        assert await traces.ids("open", limit=99) == []
        assert await self.colony.harness.letters() == []


@pytest.fixture
def chat() -> Iterator[TelegramServer]:
    with TelegramServer() as server:
        yield server


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with serving() as running:
        found = {"title": "Dalén", "url": running.url("/page"), "snippet": "sun valve"}
        running.replies["/search"] = Reply(json.dumps({"results": [found]}).encode())
        html = {"Content-Type": "text/html; charset=utf-8"}
        page = "<html><body><p>The sun valve was invented in 1907.</p></body></html>"
        running.replies["/page"] = Reply(page.encode(), headers=html)
        yield running


@asynccontextmanager
async def world(
    redis_url: str, chat: TelegramServer, web: WebServer, script: Script
) -> AsyncIterator[World]:
    with ModelServer(script) as model:
        environment = {
            "TELEGRAM_BOT_TOKEN": chat.token,
            "TELEGRAM_BASE_URL": chat.base_url,
            "COLONY_BASE_URL": model.base_url,
            "OPENROUTER_API_KEY": "k",
            "SEARCH_URL": web.url("/search"),
            "FETCH_PORT": str(web.port),
            "FETCH_PRIVATE_NETWORKS": "true",
        }
        spec = load(shipped(TREE), environment=environment).publishable()
        async with Harness(redis_url, spec, environment=environment) as harness:
            yield World(chat, web, Colony(harness), model.requests)


def research(web: WebServer) -> Script:
    """Searches and reads at once, then answers with what was read."""

    def script(request: ModelRequest) -> Mapping[str, Any]:
        told = results(request)
        if not told:
            search = call("web_search", {"query": question(request)}, "s")
            read = call("web_fetch", {"url": web.url("/page")}, "r")
            return {"tool_calls": [search, read]}
        return {"text": f"{question(request)} {told['r'].strip()} [source: {web.url('/page')}]"}

    return script


def one_round(*calls: Mapping[str, Any], text: str | None = None) -> Script:
    """Asks for these calls, then says what it was told of them."""

    def script(request: ModelRequest) -> Mapping[str, Any]:
        told = results(request)
        if not told:
            return {"tool_calls": [*calls], "text": text}
        return {"text": json.dumps(told)}

    return script


def test_the_tree_needs_no_credentials_to_be_sound() -> None:
    loaded = load(shipped(TREE), environment={})

    assert loaded.findings == ()
    loaded.publishable()


async def test_a_question_in_the_chat_is_answered_in_the_chat(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    chat.say("When was the sun valve invented?", chat_id=-77)
    async with world(redis_url, chat, web, research(web)) as running:
        (text,) = await running.answers(1)
        await running.assert_clean(1)
        (trace_id,) = await running.colony.harness.traces.ids("ended", limit=9)
        (archived,) = await running.colony.rows("answers", trace_id=trace_id)

    assert chat.sent[0].chat_id == -77
    assert "The sun valve was invented in 1907." in text
    assert f"[source: {web.url('/page')}]" in text
    assert archived == {"question": "When was the sun valve invented?", "answer": text}
    paths = [request.split()[1] for request in web.requests]
    assert sorted(path.partition("?")[0] for path in paths) == ["/page", "/search"]
    assert running.asked[0].headers["authorization"] == "Bearer k"
    assert "research assistant" in json.dumps(running.asked[0].body)


async def test_questions_of_two_chats_are_answered_each_in_its_own(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    chat.say("first?", chat_id=1)
    chat.say("second?", chat_id=2)
    chat.say("third?", chat_id=1)
    async with world(redis_url, chat, web, research(web)) as running:
        await running.answers(3)
        await running.assert_clean(3)

    told = [(sent.chat_id, sent.text.split()[0]) for sent in chat.sent]
    assert sorted(told) == [(1, "first?"), (1, "third?"), (2, "second?")]


async def test_messages_of_one_chat_are_answered_in_their_order_and_told_of_each_other(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    for text in ("first?", "second?", "third?"):
        chat.say(text, chat_id=1)
    async with world(redis_url, chat, web, research(web)) as running:
        texts = await running.answers(3)
        await running.assert_clean(3)
        last = running.asked[-1].messages

    assert [text.split()[0] for text in texts] == ["first?", "second?", "third?"]
    said = [m["content"] for m in last if m["role"] in ("user", "assistant") and m["content"]]
    assert said == ["first?", texts[0], "second?", texts[1], "third?"]


async def test_a_long_answer_comes_in_parts(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    paragraphs = [f"{n}: " + "word " * 500 for n in range(4)]
    chat.say("all of it")
    async with world(redis_url, chat, web, lambda _: {"text": "\n\n".join(paragraphs)}) as running:
        await running.answers(4)
        await running.assert_clean(1)

    assert [sent.text[:2] for sent in chat.sent] == ["0:", "1:", "2:", "3:"]


# What goes wrong in the example that this tree follows, and must not here


async def test_a_note_does_not_keep_its_round_from_going_on(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    chat.say("remember this")
    script = one_round(call("remember", {"text": "noted"}, "n"))
    async with world(redis_url, chat, web, script) as running:
        (text,) = await running.answers(1)
        await running.assert_clean(1)

    assert set(json.loads(text)) == {"n"}


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (call("teleport", {}, "x"), "unknown_tool"),
        (call("unknown", {}, "x"), "unknown_tool"),
        (call("web_search", '{"query": ', "x"), ""),
        (call("web_fetch", {"url": "http://169.254.169.254/"}, "x"), "target_blocked"),
        (call("web_search", {"quest": 1}, "x"), "invalid_arguments"),
    ],
)
async def test_a_call_that_cannot_be_done_is_answered_under_its_id(
    redis_url: str, chat: TelegramServer, web: WebServer, made: dict[str, Any], told: str
) -> None:
    chat.say("try")
    good = call("web_search", {"query": "q"}, "s")
    async with world(redis_url, chat, web, one_round(made, good)) as running:
        (text,) = await running.answers(1)
        await running.assert_clean(1)

    found = json.loads(text)
    assert set(found) == {"x", "s"}
    assert told in found["x"]
    assert "sun valve" in found["s"]


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({"text": "It was", "finish_reason": "length"}, "It was\n\n[The answer was cut off"),
        ({"text": "No", "finish_reason": "content_filter"}, "withheld"),
        ({"status": 401, "body": {"error": {"message": "no such key"}}}, "auth"),
        ({"status": 404, "body": {"error": {"message": "no such model"}}}, "model_not_found"),
    ],
)
async def test_a_model_that_cannot_go_on_is_told_of_in_the_chat(
    redis_url: str, chat: TelegramServer, web: WebServer, last: dict[str, Any], told: str
) -> None:
    chat.say("go")
    async with world(redis_url, chat, web, lambda _: last) as running:
        (text,) = await running.answers(1)
        await running.assert_clean(1)

    assert told in text


async def test_a_loop_without_end_is_ended_with_an_answer(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    def script(request: ModelRequest) -> Mapping[str, Any]:
        return {"tool_calls": [call("web_search", {"query": "q"}, f"s{len(results(request))}")]}

    chat.say("go")
    async with world(redis_url, chat, web, script) as running:
        (text,) = await running.answers(1)
        await running.assert_clean(1)

    assert "more rounds" in text


async def test_a_result_that_is_lost_does_not_silence_the_chat(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    chat.say("go")
    script = one_round(
        call("web_search", {"query": "q"}, "s"), call("web_fetch", {"url": "http://x/"}, "r")
    )
    async with world(redis_url, chat, web, script) as running:
        harness, lost = running.colony.harness, False
        deadline = time.monotonic() + PATIENCE_S
        while not lost:
            assert time.monotonic() < deadline
            for delivery in await harness.pending():
                if harness.owner(delivery) == "/reader":
                    await harness.drop(delivery)
                    lost = True
                else:
                    await harness.step(delivery)
            await asyncio.sleep(0.001)
        (text,) = await running.answers(1)

    found = json.loads(text)
    assert "lost" in found["r"]
    assert "sun valve" in found["s"]


async def test_an_answer_that_cannot_be_delivered_is_kept_with_the_reason(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    chat.fail_next("sendMessage", 403, "Forbidden: bot was blocked by the user")
    chat.say("go")
    async with world(redis_url, chat, web, lambda _: {"text": "answer"}) as running:
        harness = running.colony.harness
        deadline = time.monotonic() + PATIENCE_S
        while not (ids := await harness.traces.ids("ended", limit=9)):
            assert time.monotonic() < deadline
            await harness.finish()
        (output,) = await harness.outputs(ids[0])
        assert await harness.letters() == []

    hop: Any = output["hop"]
    assert (output["path"], hop["error_code"]) == ("/undelivered", "send_failed")
    assert "blocked" in hop["detail"]
    assert chat.sent == []


async def test_a_question_from_no_chat_ends_with_the_reason(
    redis_url: str, chat: TelegramServer, web: WebServer
) -> None:
    async with world(redis_url, chat, web, lambda _: {"text": "answer"}) as running:
        harness = running.colony.harness
        trace_id = await harness.ask("/prep", "go")
        await harness.finish()
        (output,) = await harness.outputs(trace_id)
        await running.assert_clean(1)

    hop: Any = output["hop"]
    assert (output["path"], hop["error_code"]) == ("/undelivered", "missing_chat_id")
