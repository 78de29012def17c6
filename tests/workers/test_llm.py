import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from colony.body import Attachment, Body, Entry
from colony.codec import encode_body
from colony.envelope import Emission, Envelope
from colony.results import handle_of, with_handle
from colony.testing.host import RecordingHost
from colony.testing.model_server import ModelServer
from colony.topology.model import ToolDeclaration
from workers.llm import Llm
from workers.llm.servers.bounded_client import MAX_RESPONSE_BYTES

QUESTION = Entry.say("user", "What is it?")


def envelope(*entries: Entry, **slots: Any) -> Envelope:
    context = slots.pop("context", {})
    body = Body.model_validate({"messages": entries or (QUESTION,), **slots})
    return Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=9, context=context, body=body)


def system_only(system: Mapping[str, Any]) -> Envelope:
    body = Body.parse({"system": system})
    return Envelope(id="m-0", trace_id="t-1", target="/cell", ttl=9, body=body)


def wrapped(call_id: str, name: str = "look", **arguments: Any) -> Entry:
    function = json.dumps({"name": name, "arguments": json.dumps(arguments)})
    return Entry(origin="assistant", type="tool_call", id=call_id, text=function)


def tool_text(name: str) -> dict[str, Any]:
    function = {"name": name, "description": "d", "parameters": {"type": "object"}}
    return {"text": json.dumps({"type": "function", "function": function})}


@asynccontextmanager
async def started(host: RecordingHost) -> AsyncIterator[Llm]:
    cell = Llm(Llm.Params.model_validate(host.spec.params))
    await cell.start(host)
    try:
        yield cell
    finally:
        await cell.stop()


def host_of(server: ModelServer, **params: Any) -> RecordingHost:
    place = {"provider": "openai", "model": "m-1", "base_url": server.base_url}
    given = {**place, "attempts": 1, **params}
    return RecordingHost.of("llm", given)


async def ask(host: RecordingHost, *arriving: Envelope) -> list[Emission]:
    """The emissions for the last of `arriving`, each handled as an envelope of its own."""
    emissions: list[Emission] = []
    async with started(host) as cell:
        for one in arriving or (envelope(),):
            emissions = list(await cell.handle(one, host.next_envelope()))
    return emissions


def reading(body: Any, status: int = 200) -> dict[str, Any]:
    return {"status": status, "body": body}


def choice(message: Any, finish_reason: Any = "stop", **more: Any) -> dict[str, Any]:
    return reading({"choices": [{"message": message, "finish_reason": finish_reason}], **more})


def error_of(emission: Emission) -> dict[str, Any]:
    meta = emission.body.__pydantic_extra__["meta"]
    assert isinstance(meta, dict)
    error = meta["error"]
    assert isinstance(error, dict)
    return error


def reason_of(emission: Emission) -> tuple[object, object]:
    return emission.hop["finish_reason"], emission.hop["error_code"]


# Params


@pytest.mark.parametrize(
    "params",
    [
        {"provider": "nobody"},
        {"provider": "openai"},
        {"provider": "scripted"},
        {"provider": "extractive", "script": [{"text": "x"}]},
        {"provider": "scripted", "script": [{"text": "x", "misspelled": 1}]},
        {"provider": "extractive", "external_timeout_ms": 0},
        {"provider": "extractive", "max_concurrency": 0},
        {"provider": "extractive", "misspelled": 1},
    ],
)
def test_params_that_fit_no_provider_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Llm.Params.model_validate(params)


def test_a_cell_asks_more_than_one_question_at_once() -> None:
    assert Llm(Llm.Params(provider="extractive")).max_concurrency > 1


# Requests


async def test_a_text_answer_is_the_only_new_entry() -> None:
    with ModelServer([{"text": "It is blue."}]) as server:
        (emission,) = await ask(host_of(server))

    assert emission.body.entries == (Entry.say("assistant", "It is blue."),)
    assert emission.hop == {
        "finish_reason": "stop",
        "outcome": "message",
        "model": "m-1",
        "tokens_prompt": 10,
        "tokens_completion": 5,
    }
    meta = emission.body.__pydantic_extra__["meta"]
    assert isinstance(meta, dict)
    assert meta["provider"] == "openai"
    assert meta["response_id"] == "chatcmpl-1"
    named = {"provider", "model", "response_id", "latency_ms", "started_at", "attempts"}
    assert set(meta) == named
    assert meta["attempts"] == 1


async def test_request_carries_params_and_key_and_attribution() -> None:
    with ModelServer([{"text": "x"}]) as server:
        host = host_of(
            server,
            api_key="k-1",
            temperature=0.2,
            max_tokens=512,
            reasoning_effort="low",
            provider_extra={"top_k": 3, "max_tokens": None, "max_completion_tokens": 9},
            http_referer="https://example.org",
            x_title="colony",
        )
        await ask(host)

    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer k-1"
    assert request.headers["http-referer"] == "https://example.org"
    assert request.headers["x-title"] == "colony"
    assert request.body == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "What is it?"}],
        "temperature": 0.2,
        "reasoning_effort": "low",
        "top_k": 3,
        "max_completion_tokens": 9,
    }


async def test_an_empty_key_sends_no_authorization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "somebody's")
    with ModelServer([{"text": "x"}]) as server:
        await ask(host_of(server, api_key=""))

    assert "authorization" not in server.requests[0].headers


async def test_calls_that_stand_together_are_one_assistant_message() -> None:
    thread = [
        QUESTION,
        *(wrapped(f"c-{n}", at=n) for n in range(3)),
        Entry.say("assistant", "I look in three places."),
        *(Entry.result(f"c-{n}", f"found {n}") for n in range(3)),
        wrapped("c-3"),
        Entry.result("c-3", "found"),
    ]
    with ModelServer([{"text": "x"}]) as server:
        (emission,) = await ask(host_of(server), envelope(*thread))

    assert "error_code" not in emission.hop
    messages = server.requests[0].messages
    roles = ["user", "assistant", "tool", "tool", "tool", "assistant", "tool"]
    assert [m["role"] for m in messages] == roles
    assert messages[1]["content"] == "I look in three places."
    assert [c["id"] for c in messages[1]["tool_calls"]] == ["c-0", "c-1", "c-2"]  # type: ignore
    assert messages[1]["tool_calls"][1]["function"] == {  # type: ignore
        "name": "look",
        "arguments": '{"at": 1}',
    }
    assert messages[5]["content"] is None


async def test_calls_of_the_model_are_entries_and_go_back_as_they_came() -> None:
    calls = [{"id": "a", "name": "look", "arguments": {"q": "ä"}}, {"id": "b", "name": "see"}]
    with ModelServer([{"text": "wait", "tool_calls": calls}, {"text": "x"}]) as server:
        host = host_of(server)
        (first,) = await ask(host)
        results = [Entry.result("a", "1"), Entry.result("b", "2")]
        await ask(host, envelope(QUESTION, *first.body.entries, *results))

    assert first.hop["finish_reason"] == "tool_calls"
    assert [(e.type, e.id) for e in first.body.entries] == [
        ("tool_call", "a"),
        ("tool_call", "b"),
        ("text", None),
    ]
    assert json.loads(first.body.entries[0].text or "")["name"] == "look"
    sent = server.requests[1].messages[1]
    assert sent["content"] == "wait"
    assert sent["tool_calls"][0]["function"]["arguments"] == '{"q": "\\u00e4"}'  # type: ignore


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (Entry(origin="user", type="image"), "provider_error"),
        (Entry.call("c-1", {"bare": "arguments"}), "invalid_input"),
        (Entry(origin="assistant", type="tool_call", id="c-1", text="no json"), "invalid_input"),
    ],
)
async def test_an_entry_that_cannot_be_sent_is_refused_before_the_call(
    entry: Entry, code: str
) -> None:
    with ModelServer([]) as server:
        (emission,) = await ask(host_of(server), envelope(QUESTION, entry))

    assert reason_of(emission) == ("error", code)
    assert emission.body.messages == (QUESTION, entry)
    assert server.requests == []


async def test_attachments_are_refused_rather_than_left_out() -> None:
    file = Attachment(blob_id="b", mime_type="text/plain", size_bytes=1)
    with ModelServer([]) as server:
        (emission,) = await ask(host_of(server), envelope(attachments=(file,)))

    assert emission.hop["error_code"] == "invalid_input"


# Responses


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (reading({"error": {"message": "no"}}, 401), "auth"),
        (reading({"error": {"message": "no"}}, 403), "auth"),
        (reading({"error": {"message": "no"}}, 404), "model_not_found"),
        (reading({"error": {"message": "no"}}, 429), "rate_limited"),
        (reading({"error": {"message": "no"}}, 500), "provider_error"),
        (reading("<html>", 502), "provider_error"),
        (reading({"detail": "no"}, 422), "provider_error"),
        (
            reading({"error": {"message": "no", "code": "context_length_exceeded"}}, 400),
            "context_length",
        ),
        (
            reading({"error": {"message": "This model's maximum context length is 4096"}}, 400),
            "context_length",
        ),
        (reading({"error": {"code": 429, "message": "slow down"}}), "rate_limited"),
        (reading({"error": {"status": "401", "message": "no"}}), "auth"),
        (reading({"error": {"type": "rate_limit_exceeded", "message": "no"}}), "rate_limited"),
        (reading({"error": {"type": "insufficient_quota", "message": "no"}}), "rate_limited"),
        (reading({"error": {"message": "Rate limit reached"}}), "rate_limited"),
        (
            reading({"error": {"code": "context_length_exceeded", "message": "no"}}),
            "context_length",
        ),
        (reading({"error": "something"}), "provider_error"),
        (reading({"choices": []}), "no_choices"),
        (reading({}), "no_choices"),
        (reading("<html>"), "provider_error"),
        (reading([]), "provider_error"),
        (reading({"choices": [{"finish_reason": "stop"}]}), "provider_error"),
        (choice({"content": "x"}, "error"), "provider_error"),
        (choice({"content": None}), "empty_answer"),
        (choice({"content": ""}, "tool_calls"), "empty_answer"),
        (choice({"content": " \n"}, None), "empty_answer"),
        (choice({"content": []}), "empty_answer"),
        (choice({"content": [{"type": "text", "text": ""}, {"type": "image"}]}), "empty_answer"),
        (choice({}), "empty_answer"),
        (reading('{"choices": ' + "[" * 100_000 + "]" * 100_000 + "}"), "provider_error"),
        (reading('{"error": ' + "[" * 100_000 + "]" * 100_000 + "}", 400), "provider_error"),
    ],
)
async def test_what_goes_wrong_has_a_code_and_leaves_the_messages_unchanged(
    answer: dict[str, Any], code: str
) -> None:
    thread = (QUESTION, wrapped("c-1"), Entry.result("c-1", "found"))
    with ModelServer([answer]) as server:
        (emission,) = await ask(host_of(server), envelope(*thread))

    assert reason_of(emission) == ("error", code)
    assert emission.body.messages == thread
    assert error_of(emission)["source"] == "provider"
    assert error_of(emission)["detail"]


@pytest.mark.parametrize(
    "written",
    [
        '{"id": "\\ud800", "choices": [{"message": {"content": "x"}}]}',
        '{"model": "\\ud800", "choices": [{"message": {"content": "x"}}]}',
        '{"choices": [{"message": {"content": "\\udfff"}}]}',
        '{"choices": [{"message": {"tool_calls": [{"function": {"name": "\\ud800"}}]}}]}',
        '{"error": {"type": "\\ud800", "message": "\\ud800"}}',
    ],
)
@pytest.mark.parametrize("status", [200, 500])
async def test_half_a_surrogate_pair_is_a_response_that_cannot_be_read(
    written: str, status: int
) -> None:
    with ModelServer([reading(written, status)]) as server:
        (emission,) = await ask(host_of(server))

    assert reason_of(emission) == ("error", "provider_error")
    assert encode_body(emission.body)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_response_without_an_end_is_not_read_to_its_end(status: int) -> None:
    with ModelServer([reading("x" * (MAX_RESPONSE_BYTES + 1), status)]) as server:
        (emission,) = await ask(host_of(server))

    assert emission.hop["error_code"] == "provider_error"
    assert f"more than {MAX_RESPONSE_BYTES} bytes" in error_of(emission)["detail"]


async def test_a_count_no_header_can_hold_is_left_out() -> None:
    message = {"role": "assistant", "content": "x"}
    usage = {"prompt_tokens": 2**70, "completion_tokens": 3}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    with ModelServer([reading(answer)]) as server:
        (emission,) = await ask(host_of(server))

    assert emission.hop["tokens_completion"] == 3
    assert "tokens_prompt" not in emission.hop


async def test_the_providers_sentence_is_kept_to_500_bytes() -> None:
    with ModelServer([reading({"error": {"message": "ä" * 1000, "type": "t"}}, 500)]) as server:
        (emission,) = await ask(host_of(server))

    assert error_of(emission)["detail"] == "ä" * 250
    assert error_of(emission)["kind"] == "t"


async def test_a_server_that_is_slow_is_timeout() -> None:
    with ModelServer([{"text": "late", "delay_s": 30}]) as server:
        (emission,) = await ask(host_of(server, external_timeout_ms=300))

    assert emission.hop["error_code"] == "timeout"


async def test_a_server_that_is_away_is_provider_error() -> None:
    with ModelServer([]) as server:
        host = host_of(server)

    (emission,) = await ask(host)

    assert emission.hop["error_code"] == "provider_error"
    assert error_of(emission)["kind"] == "connection"


@pytest.mark.parametrize(
    ("answer", "finish_reason", "text"),
    [
        (choice({"content": "x"}, None), "stop", "x"),
        (choice({"content": "x"}, "end_turn"), "stop", "x"),
        (choice({"content": "x"}, "an unknown reason"), "stop", "x"),
        (choice({"content": "x"}, "length"), "length", "x"),
        (choice({"content": "x"}, "tool_calls"), "stop", "x"),
        (choice({"content": None, "refusal": "no"}, "content_filter"), "content_filter", "no"),
        (choice({"content": [{"type": "text", "text": "x"}]}), "stop", "x"),
        (choice({"content": [{"type": "text", "text": t} for t in "ab"]}, None), "stop", "ab"),
        (choice({"content": [{"type": "refusal", "refusal": "no"}]}), "stop", "no"),
    ],
)
async def test_a_label_is_mapped_and_checked_against_the_message(
    answer: dict[str, Any], finish_reason: str, text: str
) -> None:
    with ModelServer([answer]) as server:
        (emission,) = await ask(host_of(server))

    assert emission.hop["finish_reason"] == finish_reason
    assert [e.text for e in emission.body.entries] == [text]


@pytest.mark.parametrize("reason", ["stop", "tool_use", "function_call", None])
async def test_calls_count_as_calls_under_any_label(reason: str | None) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"a": 1}}}
    with ModelServer([choice({"tool_calls": [call]}, reason)]) as server:
        (emission,) = await ask(host_of(server))

    assert emission.hop["finish_reason"] == "tool_calls"
    function = json.loads(emission.body.entries[0].text or "")
    assert function == {"name": "look", "arguments": '{"a": 1}'}


async def test_calls_cut_by_length_are_routed_as_calls_and_say_that_they_are_cut() -> None:
    call = {"id": "c", "function": {"name": "look", "arguments": '{"a": '}}
    with ModelServer([choice({"tool_calls": [call]}, "length")]) as server:
        (emission,) = await ask(host_of(server))

    assert emission.hop["finish_reason"] == "tool_calls"
    assert emission.hop["outcome"] == "truncated"
    assert emission.body.entries[0].id == "c"
    assert json.loads(emission.body.entries[0].text or "")["problem"] == "truncated"


async def test_calls_without_an_id_get_the_same_one_whenever_they_are_read() -> None:
    call = {"function": {"name": "look"}}
    answer = choice({"tool_calls": [call, {**call, "id": ""}]}, "tool_calls")
    arriving = envelope(context={"turn_id": "q", "iter": 2})
    with ModelServer([answer, answer, answer]) as server:
        host = host_of(server)
        first, again = [(await ask(host, arriving))[0] for _ in range(2)]
        (other,) = await ask(host, envelope(context={"turn_id": "q", "iter": 3}))

    ids = [e.id for e in first.body.entries]
    assert len(set(ids)) == 2
    assert [e.id for e in again.body.entries] == ids
    assert not set(ids) & {e.id for e in other.body.entries}


async def test_counts_are_absent_where_the_server_counts_nothing() -> None:
    with ModelServer([{"text": "x", "usage": None}]) as server:
        (emission,) = await ask(host_of(server))

    assert set(emission.hop) == {"finish_reason", "outcome", "model"}


# Journal


async def test_an_envelope_handled_again_costs_no_second_call() -> None:
    with ModelServer([{"text": "first"}, {"text": "second"}]) as server:
        host = host_of(server)
        async with started(host) as cell:
            one, two = [list(await cell.handle(envelope(), host)) for _ in range(2)]

    assert one == two
    assert len(server.requests) == 1


async def test_a_failure_is_logged_with_its_reason_and_without_the_key() -> None:
    refusal = {"error": {"message": "the key k-1 is wrong"}}
    with ModelServer([{"status": 401, "body": refusal}]) as server:
        host = host_of(server, api_key="k-1")
        async with started(host) as cell:
            (emission,) = await cell.handle(envelope(), host)

    (line,) = host.logged
    assert (line["event"], line["log_level"], line["code"]) == ("model_failed", "warning", "auth")
    assert line["detail"] == "the key [redacted] is wrong"
    assert "k-1" not in str(emission.body.to_json()["meta"])


async def test_a_call_that_is_made_again_is_logged_with_why_and_after_how_long() -> None:
    limited = {
        "status": 429,
        "headers": {"retry-after-ms": "10"},
        "body": {"error": {"message": "the key k-1 asks too often"}},
    }
    with ModelServer([limited, {"text": "x"}]) as server:
        host = host_of(server, api_key="k-1", attempts=2)
        async with started(host) as cell:
            await cell.handle(envelope(), host)

    (line,) = host.logged
    assert (line["event"], line["log_level"]) == ("model_call_waits", "info")
    assert (line["code"], line["detail"]) == ("rate_limited", "the key [redacted] asks too often")
    assert isinstance(line["wait_s"], float)


async def test_an_envelope_whose_call_failed_is_asked_again() -> None:
    with ModelServer([{"status": 503, "body": {}}, {"text": "second"}]) as server:
        host = host_of(server)
        async with started(host) as cell:
            (broken,) = await cell.handle(envelope(), host)
            (emission,) = await cell.handle(envelope(), host)

    assert broken.hop["error_code"] == "provider_error"
    assert emission.body.entries[0].text == "second"


# System


async def system_sent(*systems: Mapping[str, Any], **params: Any) -> Any:
    """The first message of the request after these system slots, one message each."""
    with ModelServer([{"text": "x"}]) as server:
        arriving = [*map(system_only, systems), envelope()]
        (emission,) = await ask(host_of(server, **params), *arriving)
        if not server.requests:
            return emission.hop
    first = server.requests[0].messages[0]
    return first["content"] if first["role"] == "system" else None


async def test_system_alone_is_kept_and_emits_nothing() -> None:
    with ModelServer([]) as server:
        host = host_of(server)
        assert await ask(host, system_only({"identity": {"soul": {"text": "Be kind."}}})) == []

    assert host.states["session"] == {"system.identity.soul": "Be kind."}
    assert server.requests == []


async def test_leaves_are_kept_from_message_to_message_and_replaced_by_path() -> None:
    sent = await system_sent(
        {"identity": {"soul": {"text": "Be kind."}, "name": {"text": "Ada"}}},
        {"identity": {"soul": {"text": "Be brief."}}},
    )

    assert sent == "Ada\n\nBe brief."


async def test_system_is_ordered_depth_first_named_keys_before_the_others() -> None:
    system = {
        "zeta": {"text": "Z"},
        "alpha": {"b": {"text": "AB"}, "a": {"text": "AA"}},
        "first": {"text": "F"},
        "empty": {"text": ""},
    }

    assert await system_sent(system, system_order=["first", "zeta"]) == "F\n\nZ\n\nAA\n\nAB"
    assert await system_sent(system) == "AA\n\nAB\n\nF\n\nZ"


async def test_no_leaf_is_no_system_message() -> None:
    assert await system_sent({"a": {"text": ""}}) is None


async def test_replace_clears_what_is_below_and_nothing_beside() -> None:
    sent = await system_sent(
        {"a": {"x": {"text": "1"}, "y": {"text": "2"}}, "ab": {"text": "3"}},
        {"a": {"$replace": True, "z": {"text": "4"}}},
    )

    assert sent == "4\n\n3"


async def test_replace_at_the_root_clears_everything() -> None:
    assert await system_sent({"a": {"text": "1"}}, {"$replace": True, "b": {"text": "2"}}) == "2"


async def test_slots_are_counted_as_they_will_be() -> None:
    two = {"a": {"x": {"text": "1"}}, "ab": {"text": "2"}}
    fits = {"a": {"$replace": True, "y": {"text": "3"}}}
    one_too_many = {"a": {"$replace": True, "y": {"text": "3"}, "z": {"text": "4"}}}

    assert await system_sent(two, fits, system_max_slots=2) == "3\n\n2"
    with ModelServer([]) as server:
        host = host_of(server, system_max_slots=2)
        (emission,) = await ask(host, system_only(two), envelope(system=one_too_many))
    assert emission.hop["error_code"] == "invalid_input"


@pytest.mark.parametrize(
    "system",
    [
        {"a": {"$replace": "yes"}},
        {"a": {"$other": True}},
        {"a": "text"},
        {"a": {"text": 5}},
        {"a": {"text": "x", "b": {"text": "y"}}},
        {"text": "x"},
        {"a": {"text_id": "b-1"}},
        {"tools": {"t": {"text": "no json"}}},
        {"tools": {"t": {"text": "{}"}}},
        {"blocked": {"text": "x"}},
        {"ok": {"text": "x" * 101}},
        {"ok": {"1": {"text": ""}, "2": {"text": ""}, "3": {"text": ""}}},
    ],
)
async def test_a_system_that_is_refused_changes_nothing(system: dict[str, Any]) -> None:
    limits = {
        "system_writable": ["ok", "a", "tools.t"],
        "system_max_leaf_bytes": 100,
        "system_max_slots": 2,
    }
    with ModelServer([]) as server:
        host = host_of(server, **limits)
        (emission,) = await ask(host, envelope(system=system))

    assert reason_of(emission) == ("error", "invalid_input")
    assert error_of(emission)["source"] == "request"
    assert host.states == {}


@pytest.mark.parametrize("scope", ["session", "cell", "trace"])
async def test_state_is_kept_in_the_scope_the_cell_names(scope: str) -> None:
    with ModelServer([]) as server:
        host = host_of(server, state_scope=scope)
        await ask(host, system_only({"a": {"text": "1"}}))

    assert host.states == {scope: {"system.a": "1"}}


async def test_tools_of_the_system_are_offered_and_not_told() -> None:
    with ModelServer([{"text": "x"}]) as server:
        tools = {"see": tool_text("see"), "look": tool_text("look"), "gone": {"text": ""}}
        await ask(host_of(server), envelope(system={"tools": tools}))

    (request,) = server.requests
    offered = request.body["tools"]
    assert isinstance(offered, list)
    assert [tool["function"]["name"] for tool in offered] == ["look", "see"]  # type: ignore
    assert request.messages[0]["role"] == "user"


async def test_declared_tools_are_offered_unless_the_system_brings_its_own() -> None:
    declared = ToolDeclaration(name="declared", description="d", parameters={"type": "object"})
    with ModelServer([{"text": "x"}, {"text": "x"}]) as server:
        params = {"provider": "openai", "model": "m", "base_url": server.base_url}
        host = RecordingHost.of("llm", params, tools=[declared])
        await ask(host)
        await ask(host, envelope(system={"tools": {"own": tool_text("own")}}))

    offered = [json.dumps(request.body["tools"]) for request in server.requests]
    assert '"name": "declared"' in offered[0]
    assert '"name": "own"' in offered[1]
    assert "declared" not in offered[1]


# Params that a message changes


async def test_params_of_a_message_hold_for_the_calls_after_it() -> None:
    with ModelServer([{"text": "x"}, {"text": "x"}]) as server:
        host = host_of(server)
        await ask(host, envelope(params={"model": "m-2", "temperature": 0}), envelope())

    assert [r.body["model"] for r in server.requests] == ["m-2", "m-2"]
    assert server.requests[1].body["temperature"] == 0


@pytest.mark.parametrize(
    "params", [{"base_url": "http://elsewhere"}, {"api_key": "k"}, {"max_tokens": 0}, "text"]
)
async def test_params_that_cannot_be_changed_are_refused(params: Any) -> None:
    with ModelServer([]) as server:
        host = host_of(server)
        (emission,) = await ask(host, envelope(params=params))

    assert emission.hop["error_code"] == "invalid_input"
    assert host.states == {}


# Scripted


def scripted(*answers: dict[str, Any]) -> RecordingHost:
    return RecordingHost.of("llm", {"provider": "scripted", "script": list(answers)})


async def test_script_goes_by_the_rounds_made_for_the_last_question() -> None:
    call = {"name": "look", "arguments": {"q": 1}}
    host = scripted(
        {"tool_calls": [call, call], "text": "wait"},
        {"tool_calls": [{**call, "id": "fixed"}]},
        {"text": "done", "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    )
    thread: list[Entry] = [
        Entry.say("user", "before"),
        wrapped("old"),
        Entry.result("old", "x"),
        Entry.say("assistant", "earlier answer"),
        QUESTION,
    ]
    seen = []
    for _ in range(4):
        (emission,) = await ask(host, envelope(*thread))
        seen.append(emission.hop["finish_reason"])
        thread += emission.body.entries
        thread += [Entry.result(e.id or "", "r") for e in emission.body.each("tool_call")]

    assert seen == ["tool_calls", "tool_calls", "stop", "stop"]
    assert emission.hop["tokens_prompt"] == 7
    assert [e.text for e in emission.body.entries] == ["done"]
    assert thread[-4].id == "fixed"


async def test_script_may_repeat_what_the_tools_of_the_question_gave() -> None:
    thread = [
        wrapped("old"), Entry.result("old", "before"), QUESTION, wrapped("a"), wrapped("b"),
        Entry.result("a", "one"), Entry.result("b", "two"),
    ]  # fmt: skip

    (emission,) = await ask(scripted({"text": "They say: {results}."}), envelope(*thread))

    assert emission.body.entries[0].text == "They say: one\ntwo."


@pytest.mark.parametrize("iteration", ["3", 3, 3.0])
async def test_script_goes_by_the_count_of_the_tree_where_rounds_have_left(iteration: Any) -> None:
    host = scripted(*({"text": f"step {n}"} for n in range(5)))
    shown = (QUESTION, Entry.say("assistant", "GOAL"), wrapped("a"), Entry.result("a", "one"))

    (emission,) = await ask(host, envelope(*shown, context={"iter": iteration}))
    (fold,) = await ask(host, envelope(context={"iter": iteration}))

    assert emission.body.entries[0].text == "step 3"
    assert fold.body.entries[0].text == "step 0"


@pytest.mark.parametrize("iteration", ["", "no number", "1e999", -7, None, [1], True])
async def test_script_goes_by_the_thread_where_nothing_counts(iteration: Any) -> None:
    host = scripted(*({"text": f"step {n}"} for n in range(5)))
    thread = (QUESTION, wrapped("a"), Entry.result("a", "one"))

    (emission,) = await ask(host, envelope(*thread, context={"iter": iteration}))

    assert emission.body.entries[0].text == "step 1"


async def test_script_may_name_the_question_and_the_newest_handle() -> None:
    old, new = (handle_of(data, "t-1") for data in (b"old", b"new"))
    thread = (
        Entry.say("user", "before"),
        Entry.say("assistant", f"It is in {old}."),
        Entry.say("user", "And {results}?"),
        wrapped("a"),
        Entry.result("a", with_handle("long", new, size=70_000)),
        wrapped("b", path=old),
        Entry.result("b", "short"),
    )
    call = {"name": "file", "arguments": {"path": "{handle}", "more": [{"of": "{question}"}, 1]}}
    host = scripted({}, {}, {"text": "{question} {handle} {other}", "tool_calls": [call]})

    (emission,) = await ask(host, envelope(*thread))

    asked, said = emission.body.entries
    assert said.text == f"And {{results}}? {new} {{other}}"
    arguments = json.loads(json.loads(asked.text or "")["arguments"])
    assert arguments == {"path": new, "more": [{"of": "And {results}?"}, 1]}


async def test_script_finds_a_handle_in_an_earlier_answer_and_leaves_the_rest_as_it_is() -> None:
    handle = handle_of(b"old", "t-1")
    call = {"name": "file", "arguments": {"path": "{handle}"}}
    host = scripted({"tool_calls": [call, {**call, "arguments": '{"path": "{handle}"}'}]})
    told = (Entry.say("user", "before"), Entry.say("assistant", f"See {handle}."), QUESTION)

    (known,) = await ask(host, envelope(*told))
    (unknown,) = await ask(host)

    written = [json.loads(e.text or "")["arguments"] for e in known.body.entries]
    assert written == [json.dumps({"path": handle}), '{"path": "{handle}"}']
    assert "{handle}" in (unknown.body.entries[0].text or "")


async def test_script_may_hold_errors_and_other_reasons() -> None:
    (broken,) = await ask(scripted({"error": "rate_limited"}))
    (short,) = await ask(scripted({"text": "cut", "finish_reason": "length"}))

    assert reason_of(broken) == ("error", "rate_limited")
    assert broken.body.messages == (QUESTION,)
    assert short.hop["finish_reason"] == "length"
