"""The reads of a question: what its models were sent, byte for byte, and its rows."""

from collections.abc import AsyncIterator

import httpx
import pytest

from colony.access import Access
from colony.api.app import make_app
from colony.engine import Engine
from colony.principals import Principals
from colony.testing.harness import Harness
from colony.testing.model_server import ModelServer
from colony.topology.load import load
from colony.trees import shipped

QUESTION = "a question/of many parts"
CALL = {"tool_calls": [{"id": "c-1", "name": "tool-a", "arguments": {"q": "ä"}}]}


@pytest.fixture
async def sent(redis_url: str) -> list[bytes]:
    """What a model was sent for QUESTION."""
    with ModelServer([CALL, {"text": "It is blue."}]) as server:
        place = {"provider": "openai", "model": "m-1", "base_url": server.base_url}
        spec = load(shipped("tool-loop"), environment={}).publishable()
        cells = [
            cell.model_copy(update={"params": place}) if cell.path == "/llm" else cell
            for cell in spec.cells
        ]
        async with Harness(redis_url, spec.model_copy(update={"cells": tuple(cells)})) as harness:
            await harness.ask("/capture", "What is it?", context={"turn_id": QUESTION})  # type: ignore[arg-type]
            await harness.finish()
    return [request.content for request in server.requests]


@pytest.fixture
async def http(redis_url: str, sent: list[bytes]) -> AsyncIterator[httpx.AsyncClient]:
    async with Access(redis_url, "stepped") as access:
        transport = httpx.ASGITransport(
            make_app(Engine(access), principals=Principals()), raise_app_exceptions=False
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield http


async def test_a_request_is_answered_byte_for_byte(
    http: httpx.AsyncClient, sent: list[bytes]
) -> None:
    url = f"/colony/threads/{QUESTION}/request"

    newest, first = await http.get(url), await http.get(url, params={"iter": 0, "cell": "/llm"})

    assert [first.content, newest.content] == sent
    assert newest.headers["content-type"] == "application/json"


async def test_a_question_is_answered_with_its_requests_and_rows(
    http: httpx.AsyncClient, sent: list[bytes]
) -> None:
    response = await http.get(f"/colony/threads/{QUESTION}")

    thread = response.json()["thread"]
    assert thread["question"] == QUESTION
    assert [r["size"] for r in thread["requests"]] == [len(body) for body in sent]
    assert {row["row"]["role"] for row in thread["rows"]} == {"user", "assistant", "tool"}
    assert (thread["answers"], thread["waits_for"]) == ([], None)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("/colony/threads/nobody", "thread_not_found"),
        ("/colony/threads/nobody/request", "thread_not_found"),
        (f"/colony/threads/{QUESTION}/request?iter=9", "request_not_found"),
        (f"/colony/threads/{QUESTION}/request?cell=/out", "request_not_found"),
    ],
)
async def test_what_is_not_kept_is_not_found(http: httpx.AsyncClient, url: str, code: str) -> None:
    response = await http.get(url)

    assert (response.status_code, response.json()["code"]) == (404, code)


@pytest.mark.parametrize("query", ["iter=-1", "iter=x", "round=1"])
async def test_a_query_that_is_wrong_is_refused(http: httpx.AsyncClient, query: str) -> None:
    response = await http.get(f"/colony/threads/{QUESTION}/request?{query}")

    assert (response.status_code, response.json()["code"]) == (400, "bad_query")
