"""An agent to the official client of OpenAI."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import openai
import pytest

from tests.api.v1.conftest import TOKENS, Serve
from tests.api.v1.served import Served
from tests.colonies.agent_colony import calls, rounds, says

T = TypeVar("T")

ASKED: list[Any] = [{"role": "user", "content": "What is it?"}]
LOOKING = [{"text": "Let me look.", **calls("look")}, says("It is blue.")]


@asynccontextmanager
async def client_of(served: Served, token: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{served.server.address}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=token, max_retries=0) as client:
        yield client


async def meanwhile(served: Served, asked: Awaitable[T]) -> T:
    """What a request is answered with while the colony is stepped."""
    asking = asyncio.ensure_future(asked)
    async with asyncio.timeout(20):
        while not asking.done():
            await served.harness.finish()
            await asyncio.wait([asking], timeout=0.02)
    return await asking


def session_of(answer: Any) -> str:
    return str(answer.metadata["session_id"])


async def test_an_agent_answers_as_a_model_does(serve: Serve) -> None:
    served = await serve(script=LOOKING)
    async with client_of(served) as client:
        answer = await meanwhile(
            served, client.chat.completions.create(model="assistant", messages=ASKED)
        )

    (choice,) = answer.choices
    assert choice.message.content == "Let me look.\n\nIt is blue."
    assert (choice.finish_reason, answer.model) == ("stop", "assistant")
    assert answer.usage is not None


async def test_a_stream_tells_the_same_answer_piece_by_piece(serve: Serve) -> None:
    served = await serve(script=LOOKING, stream=True)
    async with client_of(served) as client:

        async def streamed() -> list[Any]:
            chunks = await client.chat.completions.create(
                model="assistant",
                messages=ASKED,
                stream=True,
                stream_options={"include_usage": True},
            )
            return [chunk async for chunk in chunks]

        chunks = await meanwhile(served, streamed())

    told = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in told) == ("Let me look.\n\nIt is blue.")
    assert told[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in told if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage is not None


async def test_the_whole_conversation_is_remembered(serve: Serve) -> None:
    served = await serve(script=[says("Blue.")])
    messages: list[Any] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A valve."},
        {"role": "user", "content": "Which colour?"},
    ]
    async with client_of(served) as client:
        answer = await meanwhile(
            served, client.chat.completions.create(model="assistant", messages=messages)
        )

    rows = await served.engine.transcript(session_of(answer))
    assert [(row.kind, *row.texts) for row in rows] == [
        ("note", "Be short."),
        ("user", "What is it?"),
        ("assistant", "A valve."),
        ("user", "Which colour?"),
        ("assistant", "Blue."),
    ]


async def test_a_session_that_is_named_is_gone_on_with(serve: Serve) -> None:
    served = await serve(script=[says("Blue."), says("Red.")])
    session = await served.session()
    await served.ran(session)
    async with client_of(served) as client:
        await meanwhile(
            served,
            client.chat.completions.create(
                model="assistant", messages=ASKED, metadata={"session_id": session}
            ),
        )

    rows = await served.engine.transcript(session)
    assert [row.kind for row in rows] == ["user", "assistant"] * 2


async def test_a_call_that_would_ask_is_refused_where_nobody_can_be_asked(serve: Serve) -> None:
    served = await serve(script=rounds([["change"]]), permissions={"ask": ["change"]})
    async with client_of(served) as client:
        answer = await meanwhile(
            served, client.chat.completions.create(model="assistant", messages=ASKED)
        )

    rows = await served.engine.transcript(session_of(answer))
    (result,) = [entry for row in rows if row.kind == "results" for entry in row.entries]
    assert result.is_error


async def test_a_run_that_has_failed_is_an_error_of_the_client(serve: Serve) -> None:
    served = await serve(script=[{"error": "auth"}])
    async with client_of(served) as client:
        with pytest.raises(openai.InternalServerError) as whole:
            await meanwhile(
                served, client.chat.completions.create(model="assistant", messages=ASKED)
            )

        async def streamed() -> None:
            chunks = await client.chat.completions.create(
                model="assistant", messages=ASKED, stream=True
            )
            async for _ in chunks:
                pass

        with pytest.raises(openai.APIError, match="the run was failed"):
            await meanwhile(served, streamed())
    assert (whole.value.status_code, whole.value.code) == (502, "run_failed")


@pytest.mark.parametrize(
    "wanted",
    [
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
        {"messages": ASKED, "n": 2},
        {"messages": ASKED, "tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
async def test_what_an_agent_cannot_do_is_refused(serve: Serve, wanted: dict[str, Any]) -> None:
    served = await serve(script=[says("one")])
    async with client_of(served) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="assistant", **wanted)

    assert refused.value.code == "invalid_argument"


async def test_what_a_model_samples_with_is_no_matter(serve: Serve) -> None:
    served = await serve(script=[says("Blue.")])
    async with client_of(served) as client:
        answer = await meanwhile(
            served,
            client.chat.completions.create(
                model="assistant", messages=ASKED, temperature=0.1, max_tokens=5, tools=[], seed=1
            ),
        )

    assert answer.choices[0].message.content == "Blue."


async def test_agents_are_listed_as_models(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    async with client_of(served) as client:
        assert [model.id async for model in client.models.list()] == ["assistant"]
        assert (await client.models.retrieve("assistant")).owned_by == "colony"
        for asking in (
            client.models.retrieve("nobody"),
            client.chat.completions.create(model="nobody", messages=ASKED),
        ):
            with pytest.raises(openai.NotFoundError) as missing:
                await asking
            assert missing.value.code == "agent_not_found"


async def test_an_api_key_is_the_token_of_somebody(serve: Serve) -> None:
    served = await serve(owners=True, script=[says("Blue.")])
    async with client_of(served, TOKENS["ann"]) as ann, client_of(served) as nobody:
        await meanwhile(served, ann.chat.completions.create(model="assistant", messages=ASKED))
        with pytest.raises(openai.AuthenticationError):
            await nobody.chat.completions.create(model="assistant", messages=ASKED)

    (session,) = (await served.engine.sessions(owner="ann")).sessions
    assert session.ask_policy == "deny"
