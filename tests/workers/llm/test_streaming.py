"""Streaming: what is told of an answer while it comes, and how a stream may fail."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.testing.host import RecordingHost
from colony.testing.model_server import ModelRequest, ModelServer
from workers.llm import Llm
from workers.llm.servers.bounded_client import MAX_RESPONSE_BYTES

CALL = {"id": "c-1", "name": "look", "arguments": {"at": "x"}}


async def ask(
    server: ModelServer | None = None, *entries: Entry, **params: Any
) -> tuple[Emission, RecordingHost]:
    given = {"provider": "openai", "model": "m", "stream": True, "attempts": 1, **params}
    if server is not None:
        given["base_url"] = server.base_url
    host = RecordingHost.of("llm", given)
    body = Body.model_validate({"messages": entries or (Entry.say("user", "?"),)})
    envelope = Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=9, context={}, body=body)
    cell = Llm(Llm.Params.model_validate(given))
    await cell.start(host)
    try:
        (emission,) = await cell.handle(envelope, host)
    finally:
        await cell.stop()
    return emission, host


def told(host: RecordingHost, kind: str = "text") -> str:
    """What was told in pieces, each at its offset; fails where a piece stands wrong."""
    said = ""
    for event in host.told:
        if event["kind"] == kind:
            assert event["offset"] == len(said)
            assert event["text"]
            said += str(event["text"])
    return said


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


async def test_a_text_is_told_while_it_comes_and_is_the_answer() -> None:
    with ModelServer([{"text": "It is grün and 🙂 blue."}]) as server:
        emission, host = await ask(server)

    assert told(host) == "It is grün and 🙂 blue."
    assert emission.body.entries == (Entry.say("assistant", "It is grün and 🙂 blue."),)
    assert len({event["message_id"] for event in host.told}) == 1
    assert (emission.hop["tokens_prompt"], emission.hop["tokens_completion"]) == (10, 5)
    assert server.requests[0].body["stream"] is True


async def test_without_stream_nothing_is_asked_for_or_told() -> None:
    with ModelServer([{"text": "It is blue."}]) as server:
        _, host = await ask(server, stream=False)

    assert host.told == []
    assert "stream" not in server.requests[0].body


@pytest.mark.parametrize("stream", [True, False])
async def test_a_script_is_told_where_the_cell_streams(stream: bool) -> None:
    script = [{"text": "It is blue."}]
    _, host = await ask(provider="scripted", model="", script=script, stream=stream)

    assert told(host) == ("It is blue." if stream else "")


async def test_what_comes_slowly_is_told_before_it_is_whole() -> None:
    chunks = [delta(content=word) for word in ("one ", "two ", "three")]
    with ModelServer([{"chunks": [*chunks, STOP], "pause_s": 0.2}]) as server:
        _, host = await ask(server)

    assert told(host) == "one two three"
    assert len(host.told) > 1


async def test_what_the_model_thinks_is_told_apart() -> None:
    chunks = [delta(reasoning_content="hm "), delta(reasoning_content="yes"), delta(content="a")]
    with ModelServer([{"chunks": [*chunks, STOP]}]) as server:
        emission, host = await ask(server)

    assert told(host, "reasoning") == "hm yes"
    assert told(host) == "a"
    (entry,) = emission.body.entries
    assert entry.vendor == {"openai": {"turn": {"reasoning_content": "hm yes"}}}


async def test_calls_are_told_to_nobody() -> None:
    with ModelServer([{"tool_calls": [CALL]}]) as server:
        emission, host = await ask(server)

    assert host.told == []
    assert emission.hop["finish_reason"] == "tool_calls"
    assert json.loads(emission.body.entries[0].text or "")["arguments"] == '{"at": "x"}'


async def test_a_text_that_may_be_a_call_is_told_once_it_is_none() -> None:
    call = '{"name": "look", "arguments": {}}'
    with ModelServer([{"text": call}, {"text": "a text"}]) as server:
        emission, host = await ask(server, text_calls=True)
        _, plain = await ask(server, text_calls=True)

    # No tool of that name is offered here, so it is a text after all.
    assert told(host) == call
    assert emission.hop["outcome"] == "message"
    assert told(plain) == "a text"


async def test_a_stream_that_breaks_after_a_text_has_failed_visibly() -> None:
    with ModelServer([{"text": "one two three", "cut_after": 3}]) as server:
        emission, host = await ask(server, attempts=3)

    assert emission.hop["error_code"] == "provider_error"
    assert emission.hop["retry_disposition"] == "retryable"
    assert emission.hop["stream_progress"] == "visible"
    assert len(server.requests) == 1
    assert "one two three".startswith(told(host))


async def test_a_stream_that_breaks_before_a_text_is_asked_for_again() -> None:
    with ModelServer([{"text": "lost", "cut_after": 1}, {"text": "found"}]) as server:
        emission, host = await ask(server, attempts=2)

    assert emission.body.entries[0].text == "found"
    assert told(host) == "found"


async def test_a_connection_that_breaks_after_the_label_costs_nothing() -> None:
    with ModelServer([{"chunks": [delta(content="42"), STOP], "cut_after": 2}]) as server:
        emission, _ = await ask(server)

    assert emission.body.entries[0].text == "42"
    meta = emission.body.__pydantic_extra__["meta"]
    assert meta["warnings"] == {"done_missing": 1}


async def test_a_stream_that_does_not_begin_in_time_is_timeout() -> None:
    with ModelServer([{"text": "late", "delay_s": 30}]) as server:
        emission, _ = await ask(server, first_byte_timeout_ms=200)

    assert emission.hop["error_code"] == "timeout"
    assert emission.hop["retry_disposition"] == "retryable"
    assert emission.hop["stream_progress"] == "precommit"


async def test_a_stream_that_falls_silent_is_timeout() -> None:
    answer = {"chunks": [delta(content="one"), delta(content="two")], "pause_s": 30}
    with ModelServer([answer]) as server:
        emission, host = await ask(server, idle_timeout_ms=200)

    assert emission.hop["error_code"] == "timeout"
    assert emission.hop["stream_progress"] == "visible"
    assert told(host) == "one"


async def test_a_stream_without_an_end_is_not_read_to_its_end() -> None:
    comment = ": " + "x" * (1 << 20) + "\n\n"
    with ModelServer([{"sse": comment * (MAX_RESPONSE_BYTES // (1 << 20) + 1)}]) as server:
        emission, _ = await ask(server)

    assert emission.hop["error_code"] == "provider_error"
    meta = emission.body.__pydantic_extra__["meta"]
    assert f"more than {MAX_RESPONSE_BYTES} bytes" in meta["error"]["detail"]


async def test_a_server_that_cannot_count_is_asked_once_and_not_again() -> None:
    def answer(request: ModelRequest) -> Mapping[str, Any]:
        if "stream_options" in request.body:
            return {"status": 400, "body": {"error": {"message": "unknown: stream_options"}}}
        return {"text": "x"}

    params = {"provider": "openai", "model": "m", "stream": True}
    with ModelServer(answer) as server:
        host = RecordingHost.of("llm", {**params, "base_url": server.base_url})
        cell = Llm(Llm.Params.model_validate(host.spec.params))
        await cell.start(host)
        for n in range(2):
            body = Body.of(Entry.say("user", "?"))
            one = Envelope(id=f"m-{n}", trace_id="t", target="/cell", ttl=9, context={}, body=body)
            (emission,) = await cell.handle(one, host.next_envelope())
        await cell.stop()

    assert emission.body.entries[0].text == "x"
    assert ["stream_options" in request.body for request in server.requests] == [True, False, False]


async def test_another_refusal_is_a_refusal() -> None:
    error = {"status": 400, "body": {"error": {"message": "unknown: temperature"}}}
    with ModelServer([error]) as server:
        emission, _ = await ask(server)

    assert emission.hop["retry_disposition"] == "permanent"
    assert len(server.requests) == 1


async def test_an_overlay_reaches_the_stream_as_well() -> None:
    overlay = {"stream_options": None, "max_tokens": None, "max_completion_tokens": 9}
    with ModelServer([{"text": "x"}]) as server:
        await ask(server, provider_extra=overlay)

    assert server.requests[0].body == {
        "model": "m",
        "messages": [{"role": "user", "content": "?"}],
        "temperature": 0.7,
        "max_completion_tokens": 9,
        "stream": True,
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_that_answers_in_the_other_form_is_read(stream: bool) -> None:
    message = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    answer = {"body": message} if stream else {"chunks": [delta(content="x"), STOP]}
    with ModelServer([answer]) as server:
        emission, _ = await ask(server, stream=stream)

    assert emission.body.entries[0].text == "x"
    assert emission.hop["outcome"] == "message"


async def test_a_page_instead_of_a_stream_is_a_failure_that_may_stay() -> None:
    page = {"status": 200, "body": "<html>", "headers": {"content-type": "text/html"}}
    with ModelServer([page]) as server:
        emission, _ = await ask(server)

    assert emission.hop["error_code"] == "provider_error"
    assert emission.hop["retry_disposition"] == "unknown"


# What single servers want


def called(call_id: str) -> tuple[Entry, Entry]:
    function = json.dumps({"name": "look", "arguments": "{}"})
    call = Entry(origin="assistant", type="tool_call", id=call_id, text=function)
    return call, Entry.result(call_id, "found")


async def test_ids_are_nine_letters_where_the_server_wants_them_so() -> None:
    thread = (Entry.say("user", "?"), *called("call_abc-1"), *called("AbC123xyZ"))
    with ModelServer([{"text": "x"}, {"text": "x"}]) as server:
        for _ in range(2):
            await ask(server, *thread, id_profile="mistral")

    first, again = (
        [m for m in request.messages if m["role"] != "user"] for request in server.requests
    )
    ids = [call["id"] for m in first for call in m.get("tool_calls") or ()]
    assert [m["tool_call_id"] for m in first if m["role"] == "tool"] == ids
    assert all(len(i) == 9 and i.isalnum() and i.isascii() for i in ids)
    assert ids[1] == "AbC123xyZ"
    assert again == first


@pytest.mark.parametrize(("policy", "content"), [("null", None), ("empty", "")])
async def test_what_stands_for_no_text_is_what_the_server_wants(policy: str, content: Any) -> None:
    with ModelServer([{"text": "x"}]) as server:
        await ask(server, Entry.say("user", "?"), *called("c-1"), content_null=policy)

    assert server.requests[0].messages[1]["content"] == content
