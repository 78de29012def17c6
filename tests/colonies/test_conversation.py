"""Questions of one session, with either join: each is told what was said before it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from colony.streams import Delivery
from colony.testing.harness import Harness, at_random
from colony.testing.model_server import ModelRequest, ModelServer
from tests.colonies.conftest import Colony
from workers.toolloop.conversation import MAX_VIEW_BYTES

TREES = pytest.mark.parametrize("tree", ["research", "research-settle"])
FETCH = {"id": "f", "name": "web_fetch", "arguments": {"url": "file:///dalen-sun-valve.md"}}


def answering(request: ModelRequest) -> Mapping[str, Any]:
    """Answers each question with one that is as long as it, and a question `look` after a round."""
    asked = [m["content"] for m in request.messages if m["role"] == "user"][-1]
    if asked == "look" and request.messages[-1]["role"] != "tool":
        return {"tool_calls": [FETCH]}
    if asked == "fail":
        return {"text": "It was", "finish_reason": "length"}
    if asked == "break":
        return {"status": 401, "body": {"error": {"message": "no such key"}}}
    return {"text": f"answer to {asked}"}


@dataclass
class Talk:
    """A tree, and what its model was asked."""

    colony: Colony
    server: ModelServer

    async def ask(self, text: str, session: str | None = "s", **context: str) -> str:
        """Ask, and run until nothing moves any more; the id of the trace."""
        named = {} if session is None else {"session_id": session}
        trace = await self.colony.harness.ask("/prep", text, context={**named, **context})
        await self.colony.answer(trace)
        return str(trace)

    @property
    def said(self) -> list[list[tuple[str, Any]]]:
        """The messages of each request without the system's."""
        return [
            [(str(m["role"]), m["content"]) for m in request.messages if m["role"] != "system"]
            for request in self.server.requests
        ]

    @property
    def sent(self) -> int:
        """How many bytes of text the model was sent with its last request."""
        return sum(len(str(text)) for _, text in self.said[-1])


Start = Callable[..., Any]


@pytest.fixture
def talk(start: Start) -> Callable[..., Any]:
    @asynccontextmanager
    async def talk(tree: str, **options: Any) -> AsyncIterator[Talk]:
        with ModelServer(answering) as server:
            environment = {
                "COLONY_PROVIDER": "openai",
                "COLONY_MODEL": "test",
                "COLONY_BASE_URL": server.base_url,
            }
            yield Talk(await start(tree, environment=environment, **options), server)
            assert [r for r in server.refused if "no such key" not in str(r.body)] == []

    return talk


@TREES
async def test_second_question_begins_with_the_first_and_its_answer(
    talk: Callable[..., Any], tree: str
) -> None:
    async with talk(tree) as running:
        first = await running.ask("why?")
        second = await running.ask("look")
        await running.colony.assert_clean(first)
        await running.colony.assert_clean(second)

        before = [("user", "why?"), ("assistant", "answer to why?"), ("user", "look")]
        assert running.said[:2] == [before[:1], before]
        # So does every round of it.
        assert running.said[2][:3] == before
        assert [role for role, _ in running.said[2][3:]] == ["assistant", "tool"]


@TREES
async def test_question_of_another_session_or_of_none_sees_nothing(
    talk: Callable[..., Any], tree: str
) -> None:
    async with talk(tree) as running:
        await running.ask("why?")
        await running.ask("one?", session="other")
        await running.ask("two?", session=None)
        await running.ask("three?", session="s\0")
        await running.ask("four?")

        assert [len(said) for said in running.said] == [1, 1, 1, 1, 3]


@TREES
@pytest.mark.parametrize("failing", ["fail", "break"])
async def test_question_that_failed_is_not_in_the_next_ones_view(
    talk: Callable[..., Any], tree: str, failing: str
) -> None:
    async with talk(tree) as running:
        await running.ask("why?")
        await running.ask(failing)
        await running.ask("and then?")

        assert [text for _, text in running.said[-1]] == ["why?", "answer to why?", "and then?"]


@TREES
async def test_question_that_was_cancelled_is_not_in_the_next_ones_view(
    talk: Callable[..., Any], tree: str
) -> None:
    async with talk(tree) as running:
        harness = running.colony.harness
        context = {"session_id": "s"}
        cancelled = await harness.ask("/prep", "never mind", context=context)
        while "/planner" not in [harness.owner(found) for found in await harness.pending()]:
            await harness.step((await harness.pending())[0])
        await harness.traces.end(cancelled, "cancelled", "nobody waits for it")
        await harness.finish()
        await running.ask("why?")

        assert running.said[-1] == [("user", "why?")]


@TREES
async def test_twenty_first_question_is_not_shown_the_first_and_the_rows_stay(
    talk: Callable[..., Any], tree: str
) -> None:
    async with talk(tree) as running:
        for n in range(21):
            trace = await running.ask(f"q{n}")

        assert running.said[19][0] == ("user", "q0")
        marker = "[4 earlier questions of this conversation are not shown any more.]"
        assert running.said[20][0] == ("user", f"{marker}\n\nq4")
        rows = await running.colony.rows("conversation", trace_id=trace)
        assert len(rows) == 21
        assert {row["session_id"] for row in rows} == {"s"}


async def test_a_hundred_questions_send_no_more_each_than_the_cap(talk: Callable[..., Any]) -> None:
    """Of 5000 letters each, and answered with about as many."""
    async with talk("research-settle") as running:
        sent = []
        for n in range(100):
            await running.ask(f"{n:04} " * 1_000)
            sent.append(running.sent)

        assert max(sent) <= 65_536
        begun = {str(said[0][1]).partition("\n\n")[0] for said in running.said}
        assert len(begun) < 60
        marker, *_ = running.said[-1][0][1].partition("\n")
        assert marker == "[94 earlier questions of this conversation are not shown any more.]"
        # Without the cap each would be sent with all before it.
        assert sum(sent) * 7 < sum(5_000 * (2 * n + 1) for n in range(100))


@pytest.mark.parametrize("letter", ['"', "\1", "\n", "é"])
async def test_conversation_that_is_as_long_as_may_be_goes_on(
    talk: Callable[..., Any], letter: str
) -> None:
    """Of texts that are longer in rows and replies than they are."""
    caps = {"max_view_bytes": MAX_VIEW_BYTES, "max_questions": 1_000}
    async with talk("research-settle", more={"/prep": caps}) as running:
        for _ in range(6):
            trace = await running.ask(letter * 120_000)
            await running.colony.assert_clean(trace)

        assert running.sent > MAX_VIEW_BYTES // 3


@TREES
async def test_store_that_cannot_read_the_conversation_leaves_the_question_an_answer(
    talk: Callable[..., Any], tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"/prep": {"conversation": "nowhere"}, "/archive": {"conversation": "nowhere"}}
    async with talk(tree, more=broken) as running:
        await running.ask("why?")
        trace = await running.ask("and then?")

        assert running.said == [[("user", "why?")], [("user", "and then?")]]
        hops = await running.colony.harness.hops(trace)
        told = [hop.head.hop for hop in hops if hop.head.hop.get("route") == "ullm"]
        assert [hop["recall_error"] for hop in told] == ["unknown_table"]
        await running.colony.assert_clean(trace)


@TREES
@pytest.mark.parametrize("path", ["/prep", "/memory", "/planner", "/archive"])
async def test_conversation_is_the_same_whatever_is_handled_twice(
    talk: Callable[..., Any], tree: str, path: str
) -> None:
    """A worker that died before its commit, at each delivery of one cell."""
    async with talk(tree) as running:
        harness = running.colony.harness
        for text in ("why?", "look", "and then?"):
            await harness.ask("/prep", text, context={"session_id": "s"})
            while pending := await harness.pending():
                if harness.owner(pending[0]) == path:
                    await harness.decide(pending[0])
                await harness.step(pending[0])
            await harness.finish()

        assert [text for _, text in running.said[-1]] == [
            "why?",
            "answer to why?",
            "look",
            "answer to look",
            "and then?",
        ]
        assert await harness.letters() == []


@TREES
@pytest.mark.parametrize("seed", range(3))
async def test_questions_that_come_at_once_are_answered_one_after_the_other(
    talk: Callable[..., Any], tree: str, seed: int
) -> None:
    async with talk(tree) as running:
        harness = running.colony.harness
        for text in ("why?", "look", "and then?"):
            for session in ("s", "t"):
                await harness.ask("/prep", text, context={"session_id": session})
        await harness.finish(at_random(seed))

        told = ["why?", "answer to why?", "look", "answer to look", "and then?"]
        whole = [said for said in running.said if said[-1][1] == "and then?"]
        assert [[text for _, text in said] for said in whole] == [told, told]
        assert await harness.letters() == []


@TREES
@pytest.mark.parametrize("path", ["/memory", "/prep"])
async def test_question_whose_conversation_is_lost_on_the_way_is_answered_and_the_next_goes_on(
    talk: Callable[..., Any], tree: str, path: str
) -> None:
    async with talk(tree) as running:
        harness = running.colony.harness
        await running.ask("why?")
        lost = await harness.ask("/prep", "look", context={"session_id": "s"})
        await harness.ask("/prep", "and then?", context={"session_id": "s"})
        for delivery in await until(harness, path):
            await harness.drop(delivery)
        answer = await running.colony.answer(lost)

        assert "part of the work was lost" in answer
        assert [text for _, text in running.said[-1]] == ["why?", "answer to why?", "and then?"]


async def until(harness: Harness, path: str) -> list[Delivery]:
    """Run until the question has asked for its conversation, or has it; those deliveries."""
    while True:
        pending = await harness.pending()
        found = [
            delivery
            for delivery in pending
            if harness.owner(delivery) == path
            and delivery.head.context.get("store_origin") == "recall"
        ]
        if found:
            return found
        await harness.step(pending[0])


@TREES
async def test_question_that_is_asked_for_twice_is_in_the_conversation_once(
    talk: Callable[..., Any], tree: str
) -> None:
    async with talk(tree) as running:
        await running.ask("why?", turn_id="t-7")
        await running.ask("why?", turn_id="t-7")
        await running.ask("and then?")

        assert [text for _, text in running.said[-1]] == ["why?", "answer to why?", "and then?"]
