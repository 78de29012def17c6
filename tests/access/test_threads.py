"""What a model was sent is kept byte for byte, and so is what the record of a question holds."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

from colony.access import Access
from colony.access.threads import QuestionThread
from colony.body import Entry
from colony.errors import RequestNotFound, ThreadNotFound
from colony.requests import Requests, SentRequest
from colony.testing.harness import Harness
from colony.testing.messages_server import MessagesServer
from colony.testing.model_server import ModelServer
from colony.topology.load import load
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec
from colony.trees import shipped

CALL = {"text": "I look.", "tool_calls": [{"id": "c-1", "name": "tool-a", "arguments": {"q": "ä"}}]}
ANSWER = {"text": "It is blue."}
BLOCKS = [{"type": "tool_use", "id": "c-1", "name": "tool-a", "input": {"q": "ä"}}]


class Colony:
    """A tree that runs one step at a time, and a client of it."""

    def __init__(self, harness: Harness, access: Access) -> None:
        self.harness = harness
        self.access = access

    async def ask(self, target: str, text: str = "What is it?", **options: Any) -> str:
        """The trace of a question that has come to its end."""
        trace_id = await self.harness.ask(target, text, **options)
        await self.harness.finish()
        return trace_id

    async def bodies(self, question: str) -> list[bytes]:
        """What the models of a question were sent, in that order."""
        found = await self.access.thread(question)
        return [await self.access.threads.body(request) for request in found.requests]


Start = Callable[[TopologySpec], Any]


@pytest.fixture
async def start(redis_url: str) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(spec: TopologySpec) -> Colony:
            harness = await stack.enter_async_context(Harness(redis_url, spec))
            access = await stack.enter_async_context(Access(redis_url, harness.keys.name))
            return Colony(harness, access)

        yield start


def alone(**params: Any) -> TopologySpec:
    """A model and where its answer goes."""
    llm = CellSpec(path="/llm", cell=CellSettings(type="llm"), params=params)
    out = CellSpec(path="/out", cell=CellSettings(type="sink"))
    return TopologySpec(cells=(llm, out), edges=(EdgeSpec(source="/llm", target="/out"),))


def looping(**params: Any) -> TopologySpec:
    """The tool loop with another model."""
    spec = load(shipped("tool-loop"), environment={}).publishable()
    cells = [
        cell.model_copy(update={"params": params}) if cell.path == "/llm" else cell
        for cell in spec.cells
    ]
    return spec.model_copy(update={"cells": tuple(cells)})


def openai(server: ModelServer, **params: Any) -> dict[str, Any]:
    place = {"provider": "openai", "model": "m-1", "base_url": server.base_url}
    return {**place, "api_key": "sk-secret", **params}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_requests_of_every_round_are_kept_byte_for_byte(start: Start, stream: bool) -> None:
    with ModelServer([CALL, CALL, ANSWER]) as server:
        colony = await start(looping(**openai(server, stream=stream)))
        trace_id = await colony.ask("/capture", 'Is it "blue" 🌊?')

    sent = [request.content for request in server.requests]
    assert len(sent) == 3
    assert await colony.bodies(trace_id) == sent
    found = await colony.access.thread(trace_id)
    assert [(r.cell, r.iteration, r.attempt, r.sent) for r in found.requests] == [
        ("/llm", n, 1, 1) for n in range(3)
    ]
    assert {(r.provider, r.model) for r in found.requests} == {("openai", "m-1")}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_requests_of_anthropic_are_kept_byte_for_byte(start: Start, stream: bool) -> None:
    with MessagesServer([{"content": BLOCKS}, {"content": "It is blue."}]) as server:
        place = {"provider": "anthropic", "model": "m-1", "base_url": server.base_url}
        colony = await start(looping(**place, api_key="sk-secret", stream=stream))
        trace_id = await colony.ask("/capture")

    sent = [request.content for request in server.requests]
    assert len(sent) == 2
    assert await colony.bodies(trace_id) == sent


@pytest.mark.parametrize("provider", ["scripted", "extractive"])
async def test_a_model_of_this_process_is_kept_as_it_would_be_sent(
    start: Start, provider: str
) -> None:
    script = {"script": [{"text": "It is blue."}]} if provider == "scripted" else {}
    colony = await start(alone(provider=provider, max_tokens=9, temperature=None, **script))

    (body,) = await colony.bodies(await colony.ask("/llm", "ä?"))

    message = '{"role":"user","content":"ä?"}'
    expected = f'{{"model":"{provider}","messages":[{message}],"max_tokens":9}}'
    assert body == expected.encode()


async def test_no_header_is_kept(start: Start, redis_url: str) -> None:
    with ModelServer([ANSWER]) as server:
        colony = await start(alone(**openai(server)))
        trace_id = await colony.ask("/llm")

    assert server.requests[0].headers["authorization"] == "Bearer sk-secret"
    keys = colony.harness.keys
    kept = await colony.harness.link.command("HGETALL", keys.requests(trace_id))
    assert kept
    assert not any(b"sk-secret" in value for value in kept)


async def test_what_rounds_have_in_common_is_kept_once(start: Start) -> None:
    """Twice as many rounds take about twice the bytes, though requests grow with each."""

    async def kept(rounds: int) -> tuple[int, int]:
        calls = [
            {"tool_calls": [{"id": f"c-{n}", "name": "tool-a", "arguments": {"q": f"{n}" * 1000}}]}
            for n in range(rounds)
        ]
        with ModelServer([*calls, ANSWER]) as server:
            colony = await start(looping(**openai(server)))
            trace_id = await colony.ask("/capture", ttl=512)
        assert len(server.requests) == rounds + 1
        values = await colony.harness.link.command("HVALS", colony.harness.keys.requests(trace_id))
        assert await colony.bodies(trace_id) == [request.content for request in server.requests]
        return sum(map(len, values)), sum(len(request.content) for request in server.requests)

    few, many = await kept(4), await kept(8)

    assert many[0] < 2.1 * few[0]
    assert many[1] > 3 * few[1]


async def test_a_retry_is_counted_where_it_sends_the_same_and_kept_where_it_does_not(
    start: Start,
) -> None:
    busy = {"status": 503, "body": {"error": {"message": "busy"}}}
    cut = {"text": "It is", "finish_reason": "length"}
    with ModelServer([busy, cut, ANSWER]) as server:
        colony = await start(alone(**openai(server, max_tokens=5)))
        trace_id = await colony.ask("/llm")

    first, again, enlarged = (request.content for request in server.requests)
    assert first == again != enlarged
    assert await colony.bodies(trace_id) == [first, enlarged]
    found = await colony.access.thread(trace_id)
    assert [(r.attempt, r.sent) for r in found.requests] == [(1, 2), (3, 1)]
    assert found.chosen() == found.requests[1]
    assert found.beside(found.chosen()) == [found.requests[0]]


async def test_an_envelope_that_is_delivered_again_adds_no_request(start: Start) -> None:
    """Its answer was recorded, so nobody is asked again."""
    with ModelServer([ANSWER, ANSWER]) as server:
        colony = await start(alone(**openai(server)))
        trace_id = await colony.harness.ask("/llm", "What is it?")
        (routed,) = await colony.harness.pending()
        await colony.harness.step(routed)
        (delivery,) = await colony.harness.pending()

        await colony.harness.decide(delivery)
        await colony.harness.finish()

    (request,) = server.requests
    assert await colony.bodies(trace_id) == [request.content]
    assert (await colony.access.thread(trace_id)).requests[0].sent == 1


async def test_a_call_whose_answer_was_lost_is_counted_when_it_is_made_again(start: Start) -> None:
    with ModelServer([ANSWER, ANSWER]) as server:
        colony = await start(alone(**openai(server)))
        trace_id = await colony.harness.ask("/llm", "What is it?")
        (routed,) = await colony.harness.pending()
        await colony.harness.step(routed)
        (delivery,) = await colony.harness.pending()
        await colony.harness.decide(delivery)
        await colony.harness.link.command("DEL", colony.harness.keys.journal(trace_id))

        await colony.harness.finish()

    first, second = server.requests
    assert first.content == second.content
    (request,) = (await colony.access.thread(trace_id)).requests
    assert request.sent == 2


async def test_a_trace_that_was_cancelled_takes_no_request_and_fails_no_call(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = Requests.record

    async def too_late(self: Requests, body: bytes, **told: Any) -> None:
        await colony.harness.traces.end(trace_id, "cancelled", "why")
        await record(self, body, **told)

    monkeypatch.setattr(Requests, "record", too_late)
    with ModelServer([ANSWER]) as server:
        colony = await start(alone(**openai(server)))
        trace_id = await colony.harness.ask("/llm", "What is it?")
        await colony.harness.finish()

    keys = colony.harness.keys
    assert len(server.requests) == 1
    assert not await colony.harness.link.command("EXISTS", keys.requests(trace_id))
    assert await colony.harness.letters() == []
    assert "request_not_recorded" in caplog.text


async def test_a_cell_that_is_told_not_to_records_nothing(start: Start) -> None:
    with ModelServer([ANSWER]) as server:
        colony = await start(alone(**openai(server, record_requests=False)))
        trace_id = await colony.ask("/llm")

    found = await colony.access.thread(trace_id)
    assert len(server.requests) == 1
    assert found.requests == []
    with pytest.raises(RequestNotFound, match="none is kept"):
        found.chosen()


async def test_a_question_is_found_by_its_turn_id_as_well(start: Start) -> None:
    with ModelServer([CALL, ANSWER]) as server:
        colony = await start(looping(**openai(server)))
        trace_id = await colony.ask("/capture", context={"turn_id": "q-1"})

    by_trace = await colony.access.thread(trace_id)
    by_turn = await colony.access.thread("q-1")

    assert len(by_turn.requests) == 2
    assert by_turn.requests == by_trace.requests
    assert by_turn.rows == by_trace.rows


async def test_the_record_is_shown_as_it_is(start: Start) -> None:
    with ModelServer([CALL, ANSWER]) as server:
        colony = await start(looping(**openai(server)))
        trace_id = await colony.ask("/capture")

    rows = (await colony.access.thread(trace_id)).rows

    assert [(row.values["role"], row.values["iter"]) for row in rows][:1] == [("user", 0)]
    assert {str(row.values["role"]) for row in rows} == {"user", "assistant", "tool"}
    asked = Entry.say("user", "What is it?")
    assert rows[0].values["turn"] == json_of(asked)
    assert rows[0].size == len(json_of(asked).encode())
    assert all(row.number < later.number for row, later in pairwise(rows))


async def test_a_question_that_nobody_knows_is_refused(start: Start) -> None:
    colony = await start(alone(provider="extractive"))

    with pytest.raises(ThreadNotFound):
        await colony.access.thread("nobody")


async def test_an_iteration_or_a_cell_without_a_request_is_told_with_those_there_are(
    start: Start,
) -> None:
    with ModelServer([CALL, ANSWER]) as server:
        colony = await start(looping(**openai(server)))
        found: QuestionThread = await colony.access.thread(await colony.ask("/capture"))

    assert found.chosen().iteration == 1
    assert found.chosen(0).iteration == 0
    assert found.chosen(0, "/llm") == found.chosen(0)
    for iteration, cell in ((7, None), (None, "/other")):
        with pytest.raises(RequestNotFound, match="but /llm in 0, 1 did"):
            found.chosen(iteration, cell)


def request(cell: str, iteration: int, number: int, **more: Any) -> SentRequest:
    return SentRequest(
        trace_id="t",
        name=b"e:%d" % number,
        envelope_id="e",
        cell=cell,
        turn_id="q",
        iteration=iteration,
        attempt=more.get("attempt", 1),
        provider="p",
        model="m",
        size=1,
        number=number,
        at=number,
        sent=1,
    )


def test_of_several_cells_the_one_that_asked_first_is_shown_beside_the_others() -> None:
    """A summariser asks in the same round as the model whose thread it condenses."""
    asked = request("/planner", 0, 0)
    summing_up, retried = request("/condense", 1, 1), request("/condense", 1, 2, attempt=2)
    went_on = request("/planner", 1, 3)
    found = QuestionThread("q", [asked, summing_up, retried, went_on], [])

    assert found.chosen() is went_on
    assert found.chosen(1, "/condense") is retried
    assert found.chosen(cell="/condense") is retried
    assert found.chosen(0) is asked
    assert found.beside(went_on) == [summing_up, retried]
    assert found.beside(asked) == []
    with pytest.raises(RequestNotFound, match="but /planner in 0, 1; /condense in 1 did"):
        found.chosen(0, "/condense")


async def test_requests_go_with_their_trace(start: Start) -> None:
    with ModelServer([ANSWER]) as server:
        colony = await start(alone(**openai(server)))
        trace_id = await colony.ask("/llm")

    keys, link = colony.harness.keys, colony.harness.link
    assert 0 < await link.command("PTTL", keys.requests(trace_id)) <= 24 * 3600 * 1000
    request = (await colony.access.thread(trace_id)).chosen()
    await link.command("DEL", keys.requests(trace_id))
    with pytest.raises(RequestNotFound, match="not kept any more"):
        await colony.access.threads.body(request)


def json_of(entry: Entry) -> str:
    return json.dumps(entry.to_json(), ensure_ascii=False)
