"""What a model is sent is recorded as it goes out, and no call waits for that."""

import asyncio
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.testing.host import RecordingHost, Sent
from colony.testing.model_server import ModelRequest, ModelServer
from workers.llm import Llm
from workers.llm.asking.recording import Recording

ANSWER = {"text": "It is blue."}


def params_of(server: ModelServer, **params: Any) -> dict[str, Any]:
    place = {"provider": "openai", "model": "m-1", "base_url": server.base_url}
    return {**place, "attempts": 1, **params}


async def ask(host: RecordingHost, **extra: Any) -> Emission:
    body = Body.parse({"messages": [Entry.say("user", "What is it?").to_json()], **extra})
    cell = Llm(Llm.Params.model_validate(host.spec.params))
    await cell.start(host)
    try:
        arriving = Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=9, body=body)
        (emission,) = await cell.handle(arriving, host)
    finally:
        await cell.stop()
    return emission


class Slow(RecordingHost):
    """A host that keeps a request only once the model has seen it."""

    seen: asyncio.Event

    async def record_request(self, body: bytes, *, provider: str, model: str, attempt: int) -> None:
        await self.seen.wait()
        await super().record_request(body, provider=provider, model=model, attempt=attempt)


async def test_the_call_is_made_while_its_request_is_recorded_and_answered_when_it_is() -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Event()

    def script(request: ModelRequest) -> dict[str, Any]:
        loop.call_soon_threadsafe(seen.set)
        return ANSWER

    with ModelServer(script) as server:
        host = Slow.of("llm", params_of(server))
        host.seen = seen
        await ask(host)

    assert host.sent == [Sent(server.requests[0].content, "openai", "m-1", 1)]


async def test_what_a_server_makes_the_call_send_again_is_recorded_for_the_same_call() -> None:
    error = {"message": "unknown field stream_options", "type": "invalid_request_error"}
    refusal = {"status": 400, "body": {"error": error}}
    with ModelServer([refusal, ANSWER]) as server:
        host = RecordingHost.of("llm", params_of(server, stream=True))
        await ask(host)

    first, second = server.requests
    assert "stream_options" in first.body
    assert "stream_options" not in second.body
    assert [sent.body for sent in host.sent] == [first.content, second.content]
    assert [sent.attempt for sent in host.sent] == [1, 1]


async def test_the_model_that_a_message_names_is_recorded() -> None:
    with ModelServer([ANSWER]) as server:
        host = RecordingHost.of("llm", params_of(server))
        await ask(host, params={"model": "m-2"})

    assert [sent.model for sent in host.sent] == ["m-2"] == [server.requests[0].body["model"]]


async def test_a_call_that_reaches_nobody_is_recorded() -> None:
    host = RecordingHost.of(
        "llm",
        {"provider": "openai", "model": "m", "base_url": "http://127.0.0.1:1", "attempts": 1},
    )

    emission = await ask(host)

    assert emission.hop["error_code"] == "provider_error"
    assert len(host.sent) == 1


async def test_texts_are_heard_in_calls_that_go_on_at_once_each_by_its_own_witness() -> None:
    """Many questions share one client."""
    with ModelServer(lambda request: ANSWER) as server:
        first = RecordingHost.of("llm", params_of(server))
        cell = Llm(Llm.Params.model_validate(first.spec.params))
        await cell.start(first)
        hosts = [RecordingHost.of("llm", params_of(server)) for _ in range(8)]
        asked = [
            Envelope(
                id=f"m-{n}",
                trace_id="t",
                target="/cell",
                ttl=9,
                body=Body.of(Entry.say("user", f"q{n}")),
            )
            for n in range(8)
        ]
        await asyncio.gather(*(cell.handle(e, h) for e, h in zip(asked, hosts, strict=True)))
        await cell.stop()

    for n, host in enumerate(hosts):
        (sent,) = host.sent
        assert f'"q{n}"'.encode() in sent.body


async def test_nothing_is_recorded_any_more_for_a_question_that_is_given_up() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def forever(body: bytes, attempt: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def asking() -> None:
        async with Recording(forever) as recording:
            recording.of_next_call()(b"body")
            await begun.wait()
            raise LookupError

    with pytest.raises(LookupError):
        await asking()

    assert ended.is_set()
