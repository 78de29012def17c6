"""The llm cell where a model does not answer at once: what it retries, shows and says of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import Fenced
from colony.host import Host
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.link import Link
from colony.testing.claims import eventually
from colony.testing.host import RecordingHost
from colony.testing.model_server import ModelRequest, ModelServer
from colony.topology.model import CellSettings, CellSpec
from colony.traces import Traces
from workers.llm import Llm
from workers.llm.choice import budget_name
from workers.llm.params import Params

KEYS = Keys("test")
BUSY = {"status": 503, "body": {"error": {"message": "busy"}}}


def envelope(trace_id: str = "t-1", envelope_id: str = "m-1") -> Envelope:
    body = Body.of(Entry.say("user", "What is it?"))
    return Envelope(id=envelope_id, trace_id=trace_id, target="/cell", ttl=9, body=body)


def params_of(server: ModelServer, **params: Any) -> dict[str, Any]:
    return {"provider": "openai", "model": "m-1", "base_url": server.base_url, **params}


@asynccontextmanager
async def started(host: Host) -> AsyncIterator[Llm]:
    cell = Llm(Llm.Params.model_validate(host.spec.params))
    await cell.start(host)
    try:
        yield cell
    finally:
        await cell.stop()


async def handled(host: RecordingHost) -> Emission:
    async with started(host) as cell:
        (emission,) = await cell.handle(envelope(), host)
    return emission


def meta_of(emission: Emission) -> dict[str, Any]:
    meta = emission.body.__pydantic_extra__["meta"]
    assert isinstance(meta, dict)
    return meta


# Retries


async def test_a_server_that_is_busy_for_a_moment_is_asked_again() -> None:
    with ModelServer([BUSY, {"text": "blue"}]) as server:
        host = RecordingHost.of("llm", params_of(server))
        emission = await handled(host)

    assert emission.body.entries[0].text == "blue"
    assert meta_of(emission)["attempts"] == 2
    (budget,) = host.budgets.values()
    assert [one.outcome for one in budget.settled] == ["failed", "answered"]
    assert budget.settled[-1].cost == 15


async def test_a_failure_says_whether_another_try_may_help_to_edges_and_to_people() -> None:
    refusal = {"status": 429, "headers": {"retry-after": "3600"}, "body": {"error": {}}}
    with ModelServer([refusal]) as server:
        emission = await handled(RecordingHost.of("llm", params_of(server)))

    prospects = {
        "retry_disposition": "retryable",
        "stream_progress": "precommit",
        "retry_after_s": 3600.0,
    }
    assert emission.hop == {"finish_reason": "error", "error_code": "rate_limited", **prospects}
    assert prospects.items() <= meta_of(emission)["error"].items()
    assert meta_of(emission)["attempts"] == 1


async def test_a_message_that_cannot_be_asked_is_permanent_and_takes_no_call() -> None:
    with ModelServer([]) as server:
        host = RecordingHost.of("llm", params_of(server))
        async with started(host) as cell:
            body = Body.model_validate({"messages": (), "system": {"a": "no leaf"}})
            wrong = envelope().model_copy(update={"body": body})
            (emission,) = await cell.handle(wrong, host)

    assert emission.hop["retry_disposition"] == "permanent"
    assert meta_of(emission)["attempts"] == 0
    assert [budget.taken for budget in host.budgets.values()] == [[]]


async def test_a_tree_may_say_that_nothing_is_asked_twice() -> None:
    with ModelServer([BUSY, {"text": "blue"}]) as server:
        emission = await handled(RecordingHost.of("llm", params_of(server, attempts=1)))

    assert emission.hop["error_code"] == "provider_error"
    assert len(server.requests) == 1


async def test_warnings_are_logged_once_and_counted_where_readers_find_them() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"body": {"choices": [{"message": message, "finish_reason": "tool_calls"}]}}
    with ModelServer([answer]) as server:
        host = RecordingHost.of("llm", params_of(server))
        async with started(host) as cell:
            first, again = [(await cell.handle(envelope(), host))[0] for _ in range(2)]

    assert meta_of(first)["warnings"] == {"id_synthesized": 1}
    assert first == again
    assert "warnings" not in first.hop
    assert [line["event"] for line in host.logged] == ["answer_mended"]


# What is shown


def streaming(server: ModelServer, **params: Any) -> RecordingHost:
    return RecordingHost.of("llm", params_of(server, stream=True, **params))


async def test_a_stream_that_breaks_after_a_text_showed_is_not_asked_again() -> None:
    with ModelServer([{"text": "It is very blue", "cut_after": 3}, {"text": "x"}]) as server:
        host = streaming(server)
        emission = await handled(host)

    assert len(server.requests) == 1
    assert emission.hop["retry_disposition"] == "retryable"
    assert emission.hop["stream_progress"] == "visible"
    assert "visible" in host.journal
    assert "".join(str(one["text"]) for one in host.told).strip()


async def test_a_stream_that_breaks_before_a_text_showed_is_asked_again_and_shows_once() -> None:
    chunks = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]}
        for text in ("", " \n")
    ]
    broken = {"chunks": chunks, "done": False}
    with ModelServer([broken, {"text": "It is blue"}]) as server:
        host = streaming(server)
        emission = await handled(host)

    assert meta_of(emission)["attempts"] == 2
    assert "".join(str(one["text"]) for one in host.told) == "It is blue"


async def test_an_answer_that_had_begun_to_show_is_not_asked_for_again_by_another_worker() -> None:
    with ModelServer([]) as server:
        host = streaming(server)
        host.journal["visible"] = b""
        emission = await handled(host)

    assert server.requests == []
    assert emission.hop == {
        "finish_reason": "error",
        "error_code": "stream_cut",
        "retry_disposition": "retryable",
        "stream_progress": "visible",
    }
    assert emission.body.messages == envelope().body.messages
    (budget,) = host.budgets.values()
    assert [(one.call, one.outcome) for one in budget.settled] == [("m-1", "neutral")]


async def test_an_answer_that_is_recorded_is_given_whatever_had_shown_of_it() -> None:
    with ModelServer([{"text": "It is blue"}]) as server:
        host = streaming(server)
        async with started(host) as cell:
            first, again = [(await cell.handle(envelope(), host))[0] for _ in range(2)]

    assert set(host.journal) == {"visible", "answer"}
    assert first == again


async def test_nothing_shows_of_a_trace_that_has_ended() -> None:
    class Ended(RecordingHost):
        async def record(self, name: str, value: bytes) -> bytes:
            raise Fenced(trace_id="t-1")

    with ModelServer([{"text": "It is blue"}]) as server:
        host = Ended.of("llm", params_of(server, stream=True))
        async with started(host) as cell:
            with pytest.raises(Fenced):
                await cell.handle(envelope(), host)

    assert host.told == []


async def test_a_model_that_always_says_the_same_needs_no_record_of_what_showed() -> None:
    script = [{"text": "It is blue"}]
    host = RecordingHost.of("llm", {"provider": "scripted", "script": script, "stream": True})
    await handled(host)

    assert set(host.journal) == {"answer"}
    assert host.budgets == {}


# Budgets


def test_one_endpoint_and_one_key_make_one_budget_that_gives_no_key_away() -> None:
    def name(**given: str) -> str:
        return budget_name(Params.model_validate({"provider": "openai", "model": "m", **given}))

    secret = "sk-secret-1"
    own = name(api_key=secret, base_url="http://a")

    assert own == name(api_key=secret, base_url="http://a", model="another")
    assert own != name(api_key=secret, base_url="http://b")
    assert own != name(api_key="sk-secret-2", base_url="http://a")
    assert secret not in own


async def test_a_cell_states_the_limits_of_its_tree() -> None:
    limits = {"requests_per_minute": 60, "tokens_per_minute": 9000, "max_in_flight": 4}
    with ModelServer([]) as server:
        host = RecordingHost.of("llm", params_of(server, **limits))
        async with started(host):
            pass

    (budget,) = host.budgets.values()
    assert (budget.limits.requests_per_minute, budget.limits.in_flight) == (60, 4)
    assert budget.limits.tokens_per_minute == 9000


class Storm:
    """A server that refuses its first request and says when others may come."""

    def __init__(self, retry_after_s: int) -> None:
        self.arrived: list[float] = []
        self._retry_after_s = retry_after_s

    def __call__(self, request: ModelRequest) -> Mapping[str, Any]:
        self.arrived.append(time.monotonic())
        if len(self.arrived) > 1:
            return {"text": "blue"}
        headers = {"retry-after": str(self._retry_after_s)}
        return {"status": 429, "headers": headers, "body": {"error": {"message": "slow down"}}}


class Worker:
    """A cell on a link of its own, as another process has it."""

    def __init__(self, url: str, params: Mapping[str, Any]) -> None:
        self.link = Link(url)
        self.spec = CellSpec(path="/cell", cell=CellSettings(type="llm"), params=dict(params))
        self.cell = Llm(Llm.Params.model_validate(params))

    async def __aenter__(self) -> "Worker":
        await self.cell.start(self._host(None))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cell.stop()
        await self.link.close()

    async def ask(self) -> Emission:
        born = await Traces(self.link, KEYS).birth("/cell", envelope().body, ttl=9)
        own = envelope(born.trace_id, f"m-{born.trace_id}")
        (emission,) = await self.cell.handle(own, self._host(own))
        return emission

    def _host(self, own: Envelope | None) -> LiveHost:
        return LiveHost(
            link=self.link,
            keys=KEYS,
            spec=self.spec,
            directory=None,
            tools=(),
            envelope=own,
            server=None,
        )


async def test_ten_workers_leave_a_provider_alone_as_long_as_it_asked_one_of_them(
    redis_url: str,
) -> None:
    storm = Storm(retry_after_s=2)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(ModelServer(storm))
        params = params_of(server, api_key="k-1")
        ten = [await stack.enter_async_context(Worker(redis_url, params)) for _ in range(10)]
        key = KEYS.budget(budget_name(Params.model_validate(params)))
        first = asyncio.create_task(ten[0].ask())
        await eventually(
            lambda: ten[1].link.command("HEXISTS", key, "paused"), "the others hear of the refusal"
        )
        others = await asyncio.gather(*(worker.ask() for worker in ten[1:]))
        answered = [await first, *others]

    begun, *further = storm.arrived
    assert sum(arrival < begun + 2 for arrival in further) <= 1
    assert [emission.body.entries[0].text for emission in answered] == ["blue"] * 10
    assert len(storm.arrived) == 11


async def test_a_question_is_answered_while_the_budget_cannot_be_asked(redis_url: str) -> None:
    with ModelServer([{"text": "blue"}]) as server:
        params = params_of(server, api_key="k-1")
        key = KEYS.budget(budget_name(Params.model_validate(params)))
        async with Worker(redis_url, params) as worker:
            await worker.link.command("SET", key, "what is no budget")
            emission = await worker.ask()

    assert emission.body.entries[0].text == "blue"
