"""The Messages API over HTTP: what is asked, what is read, and what goes wrong."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from colony.body import Entry
from colony.testing.messages_server import MessagesServer, error_body
from colony.testing.threads import block_problem
from workers.llm.provider import Answer, Failure, Generation, Request, Tool
from workers.llm.servers.anthropic_messages import AnthropicMessages
from workers.llm.servers.bounded_client import MAX_RESPONSE_BYTES, Patience
from workers.llm.servers.message_blocks import CUT_AWAY, MAX_TOKENS, to_alternating
from workers.llm.threads.thread import to_entries, to_messages

QUESTION = Entry.say("user", "why?")
THOUGHT = {"type": "thinking", "thinking": "need the clock", "signature": "sig=="}
HIDDEN = {"type": "redacted_thinking", "data": "AAAA"}
LOOK = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "ä"}}
SEE = {"type": "tool_use", "id": "toolu_2", "name": "see", "input": {}}

streamed = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@dataclass
class Heard:
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def sent(self, body):
        self.bodies.append(body)

    async def text(self, fragment):
        assert fragment
        self.texts.append(fragment)

    async def reasoning(self, fragment):
        assert fragment
        self.thoughts.append(fragment)


def request(*entries, system=None, tools=(), **generation):
    shaped = Generation(model="m-1", **generation)
    return Request(entries or (QUESTION,), system, tuple(tools), shaped, "seed")


PATIENT = Patience(first_byte_s=30, idle_s=30)


@asynccontextmanager
async def client(server, *, key="k-1", patience=PATIENT) -> AsyncIterator[AnthropicMessages]:
    made = AnthropicMessages(
        api_key=key, base_url=server.base_url, headers={}, timeout_s=30, patience=patience
    )
    try:
        yield made
    finally:
        await made.close()


async def ask(answers, asked=None, heard=None, *, patience=PATIENT):
    """What is read of the first answer, and the server that gave it."""
    with MessagesServer(answers) as server:
        async with client(server, patience=patience) as provider:
            reply = await provider.complete(asked or request(), heard or Heard())
    return reply, server


async def answered(*content, stream=True, **more):
    answers, patience = [{"content": [*content], **more}], PATIENT if stream else None
    reply, server = await ask(answers, patience=patience)
    assert isinstance(reply, Answer), reply
    assert bool(server.requests[0].body.get("stream")) is stream
    return reply


def wrapped(call_id, name="look", arguments="{}", vendor=None):
    text = json.dumps({"name": name, "arguments": arguments})
    entry = Entry(origin="assistant", type="tool_call", id=call_id, text=text)
    return entry.model_copy(update={"vendor": vendor}) if vendor else entry


# Requests


async def test_the_request_says_what_the_params_say():
    definition = {
        "type": "function",
        "function": {"name": "look", "description": "d", "parameters": {"properties": {}}},
    }
    asked = request(
        QUESTION,
        system="You are.",
        tools=[Tool("look", definition)],
        temperature=0.2,
        max_tokens=512,
        reasoning_effort="low",
        provider_extra={"top_k": 3, "metadata": {"user_id": "u"}},
    )

    _, server = await ask([{"content": "x"}], asked)

    (sent,) = server.requests
    assert sent.headers["authorization"] == "Bearer k-1"
    assert sent.headers["anthropic-version"]
    assert sent.body == {
        "model": "m-1",
        "max_tokens": 512,
        "system": "You are.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "why?"}]}],
        "tools": [
            {
                "name": "look",
                "description": "d",
                "input_schema": {"type": "object", "properties": {}},
            }
        ],
        "temperature": 0.2,
        "output_config": {"effort": "low"},
        "stream": True,
        "top_k": 3,
        "metadata": {"user_id": "u"},
    }


async def test_a_limit_is_sent_where_none_is_set_and_no_temperature_to_a_model_that_thinks():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    told = request(max_tokens=None, reasoning=thinking)
    overlaid = request(provider_extra={"thinking": thinking})

    with MessagesServer([{"content": "x"}] * 2) as server:
        async with client(server) as provider:
            await provider.complete(told, Heard())
            await provider.complete(overlaid, Heard())

    for sent in server.requests:
        assert sent.body["max_tokens"] == MAX_TOKENS
        assert sent.body["thinking"] == thinking
        assert "temperature" not in sent.body


async def test_an_empty_key_sends_no_authorization(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "somebody's")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "somebody's")
    with MessagesServer([{"content": "x"}]) as server:
        async with client(server, key="") as provider:
            await provider.complete(request(), Heard())

    assert not {"authorization", "x-api-key"} & set(server.requests[0].headers)


def test_calls_and_prose_of_a_turn_are_one_message_and_their_results_begin_the_next():
    thread = [
        QUESTION,
        wrapped("a", arguments='{"at": 1}'),
        wrapped("b"),
        Entry.say("assistant", "I look twice."),
        Entry.result("a", "found"),
        Entry.result("b", "", is_error=True),
        Entry.say("user", "go on"),
        Entry.say("user", ""),
    ]

    messages = to_alternating(thread)

    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "why?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look twice."},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 1}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "found"},
                {"type": "tool_result", "tool_use_id": "b", "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    assert block_problem(messages) is None


def test_what_one_side_says_in_a_row_is_one_message_and_what_says_nothing_is_left_out():
    thread = [
        Entry.say("system", "be brief"),
        Entry.say("assistant", "hello"),
        Entry.say("user", "one"),
        Entry.say("assistant", " \n"),
        Entry.say("system", "now in French"),
        Entry.say("tool", "two"),
    ]

    messages = to_alternating(thread)

    said = [[block["text"] for block in message["content"]] for message in messages]
    assert said == [[CUT_AWAY], ["hello"], ["one", "now in French", "two"]]
    assert block_problem(messages) is None


async def test_system_texts_at_the_head_are_told_beforehand():
    _, server = await ask([{"content": "x"}], request(Entry.say("system", "be brief"), QUESTION))

    assert server.requests[0].body["system"] == "be brief"


def test_ids_that_the_protocol_does_not_take_are_the_same_in_call_and_result():
    messages = to_alternating([QUESTION, wrapped("call:1 ä"), Entry.result("call:1 ä", "x")])

    assert block_problem(messages) is None
    assert messages == to_alternating(
        [QUESTION, wrapped("call:1 ä"), Entry.result("call:1 ä", "x")]
    )


def test_a_name_that_the_protocol_does_not_take_goes_back_without_what_is_wrong_with_it():
    thread = [QUESTION, wrapped("a", "functions.look up"), Entry.result("a", "unknown_tool: x")]

    messages = to_alternating(thread)

    assert messages[1]["content"][0]["name"] == "functions_look_up"
    assert block_problem(messages) is None


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (Entry(origin="user", type="image"), "provider_error"),
        (Entry(origin="assistant", type="tool_call", id="a", text="no json"), "invalid_input"),
    ],
)
async def test_an_entry_that_cannot_be_sent_is_refused_before_the_call(entry, code):
    reply, server = await ask([], request(QUESTION, entry))

    assert (reply.code, reply.source, reply.disposition) == (code, "request", "permanent")
    assert server.requests == server.refused == []


async def test_a_thread_that_says_nothing_is_refused_before_the_call():
    reply, _ = await ask([], request(Entry.say("user", " ")))

    assert (reply.code, reply.source) == ("invalid_input", "request")


# Answers


@streamed
async def test_a_text_is_read_with_what_it_cost(stream):
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3000,
        "output_tokens": 7,
    }

    reply = await answered({"type": "text", "text": "It is."}, stream=stream, usage=usage)

    assert (reply.text, reply.outcome, reply.finish_reason) == ("It is.", "message", "stop")
    assert (reply.tokens_prompt, reply.tokens_completion, reply.tokens_cached) == (3210, 7, 3000)
    assert (reply.response_id, reply.model) == ("msg_1", "m-1")
    assert (reply.warnings, reply.vendor) == ((), None)


@streamed
async def test_calls_are_read_in_their_order_beside_the_prose(stream):
    reply = await answered({"type": "text", "text": "wait"}, LOOK, SEE, stream=stream)

    assert (reply.outcome, reply.finish_reason, reply.text) == ("tool_calls", "tool_calls", "wait")
    assert [(c.id, c.name, json.loads(c.arguments), c.problem) for c in reply.calls] == [
        ("toolu_1", "look", {"q": "ä"}, None),
        ("toolu_2", "see", {}, None),
    ]


@streamed
@pytest.mark.parametrize(
    ("stop_reason", "finish_reason", "outcome"),
    [
        ("end_turn", "stop", "message"),
        ("stop_sequence", "stop", "message"),
        ("max_tokens", "length", "truncated"),
        ("model_context_window_exceeded", "length", "truncated"),
        ("refusal", "content_filter", "refused"),
        ("pause_turn", "stop", "message"),
    ],
)
async def test_each_reason_for_an_end_has_one_of_ours(stream, stop_reason, finish_reason, outcome):
    reply = await answered({"type": "text", "text": "x"}, stream=stream, stop_reason=stop_reason)

    assert (reply.finish_reason, reply.outcome) == (finish_reason, outcome)
    assert reply.warnings == ()


@streamed
async def test_calls_of_an_answer_that_was_cut_are_not_run(stream):
    reply = await answered(LOOK, stream=stream, stop_reason="max_tokens")

    assert reply.outcome == "truncated"
    assert [call.problem for call in reply.calls] == ["truncated"]


async def test_arguments_that_are_no_json_are_a_problem_of_their_call():
    reply = await answered({**LOOK, "input": '{"q": '}, SEE)

    assert [call.problem for call in reply.calls] == ["invalid_arguments", None]


async def test_who_listens_hears_text_and_thoughts_as_they_come():
    heard = Heard()
    content = [THOUGHT, {"type": "text", "text": "It is six o'clock."}]

    await ask([{"content": content}], heard=heard)

    assert "".join(heard.texts) == "It is six o'clock."
    assert "".join(heard.thoughts) == "need the clock"
    assert len(heard.texts) > 1


# What goes back


@streamed
async def test_thoughts_go_back_as_they_came_and_where_they_stood(stream):
    later = {**THOUGHT, "thinking": "and see", "signature": "s2"}
    said = {"type": "text", "text": "wait"}
    content = [THOUGHT, HIDDEN, said, LOOK, later, SEE]
    reply = await answered(*content, stream=stream)
    results = [Entry.result("toolu_1", "1"), Entry.result("toolu_2", "2")]

    entries = to_entries(reply, "anthropic")
    again = [Entry.model_validate_json(json.dumps(entry.to_json())) for entry in entries]
    messages = to_alternating([QUESTION, *again, *results])

    assert json.dumps(messages[1]["content"]) == json.dumps(content)
    assert block_problem(messages) is None


@streamed
async def test_thoughts_before_a_text_alone_go_back_with_it(stream):
    content = [THOUGHT, {"type": "text", "text": "six"}]
    reply = await answered(*content, stream=stream)

    messages = to_alternating([QUESTION, *to_entries(reply, "anthropic")])

    assert messages[1]["content"] == content


async def test_what_the_provider_ran_itself_goes_back_as_it_came():
    ran = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    content = [ran, found, {"type": "text", "text": "six"}]
    reply = await answered(*content)

    assert to_alternating([QUESTION, *to_entries(reply, "anthropic")])[1]["content"] == content


async def test_what_one_provider_wants_back_goes_to_no_other():
    reply = await answered(THOUGHT, LOOK)
    thread = [QUESTION, *to_entries(reply, "anthropic"), Entry.result("toolu_1", "1")]

    sent = json.dumps(to_messages(thread, None))

    assert "need the clock" not in sent
    assert "sig==" not in sent
    foreign = {"openai": {"turn": {"reasoning_content": "deep"}, "call": {"blocks": [THOUGHT]}}}
    thread = [QUESTION, wrapped("a", vendor=foreign), Entry.result("a", "1")]
    assert "deep" not in json.dumps(to_alternating(thread))
    assert "sig==" not in json.dumps(to_alternating(thread))


# What goes wrong


@pytest.mark.parametrize(
    ("status", "kind", "code", "disposition"),
    [
        (529, "overloaded_error", "provider_error", "retryable"),
        (500, "api_error", "provider_error", "retryable"),
        (429, "rate_limit_error", "rate_limited", "retryable"),
        (401, "authentication_error", "auth", "permanent"),
        (403, "permission_error", "auth", "permanent"),
        (404, "not_found_error", "model_not_found", "permanent"),
        (413, "request_too_large", "context_length", "permanent"),
        (400, "invalid_request_error", "provider_error", "permanent"),
    ],
)
async def test_a_refusal_has_a_code_and_says_whether_asking_again_may_help(
    status, kind, code, disposition
):
    answer = {"status": status, "body": error_body(kind, "no")}

    reply, server = await ask([answer, {"content": "never asked for"}])

    assert (reply.code, reply.disposition, reply.progress) == (code, disposition, "precommit")
    assert (reply.detail, reply.kind) == ("no", kind)
    assert len(server.requests) == 1


async def test_a_prompt_that_is_too_long_is_told_from_other_mistakes():
    sentence = "prompt is too long: 210000 tokens > 200000 maximum"
    answer = {"status": 400, "body": error_body("invalid_request_error", sentence)}

    reply, _ = await ask([answer])

    assert (reply.code, reply.disposition) == ("context_length", "permanent")


async def test_how_long_to_wait_is_told():
    answer = {
        "status": 429,
        "headers": {"retry-after": "7"},
        "body": error_body("rate_limit_error", "no"),
    }

    reply, _ = await ask([answer])

    assert reply.retry_after_s == 7


@pytest.mark.parametrize(("events", "progress"), [(1, "precommit"), (6, "visible")])
async def test_an_error_within_a_stream_says_how_much_was_seen(events, progress):
    error = {"type": "overloaded_error", "message": "Overloaded"}
    answer = {"content": "a long answer", "events": events, "error": error}

    reply, _ = await ask([answer])

    assert isinstance(reply, Failure)
    assert (reply.disposition, reply.progress) == ("retryable", progress)
    assert reply.kind == "overloaded_error"


@pytest.mark.parametrize("events", range(8))
async def test_a_stream_that_ends_early_is_no_answer(events):
    reply, _ = await ask([{"content": "a long answer", "events": events}])

    assert isinstance(reply, Failure)
    assert reply.disposition == "retryable"


async def test_a_stream_without_its_last_event_is_an_answer():
    reply, _ = await ask([{"content": "four", "events": 6}])

    assert (reply.text, reply.warnings) == ("four", ("done_missing",))


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"type": "message"', ""])
@streamed
async def test_a_response_that_is_no_message_is_an_error(body, stream):
    reply, _ = await ask([{"body": body}], patience=PATIENT if stream else None)

    assert isinstance(reply, Failure)
    assert reply.code == "provider_error"


@streamed
async def test_a_page_is_no_answer_and_is_not_asked_for_again(stream):
    page = {"body": "<html>", "headers": {"content-type": "Text/HTML; charset=utf-8"}}

    reply, _ = await ask([page], patience=PATIENT if stream else None)

    assert (reply.kind, reply.disposition) == ("not_json", "unknown")


@streamed
async def test_an_error_in_a_200_body_is_an_error(stream):
    answer = {"body": error_body("overloaded_error", "Overloaded")}

    reply, _ = await ask([answer], patience=PATIENT if stream else None)

    assert (reply.kind, reply.disposition) == ("overloaded_error", "retryable")


async def test_a_server_that_says_nothing_is_not_waited_for():
    answer = {"content": "x", "delay_s": 60}

    reply, _ = await ask([answer], patience=Patience(first_byte_s=0.05, idle_s=30))

    assert (reply.code, reply.disposition, reply.progress) == ("timeout", "retryable", "precommit")


async def test_a_message_in_one_piece_is_read_though_a_stream_was_asked_for():
    message = {"type": "message", "content": [LOOK], "stop_reason": "tool_use"}

    reply, _ = await ask([{"body": message}])

    assert [call.id for call in reply.calls] == ["toolu_1"]


@pytest.mark.parametrize("status", [200, 500])
async def test_a_response_without_an_end_is_not_read_to_its_end(status):
    reply, _ = await ask([{"status": status, "body": "x" * (MAX_RESPONSE_BYTES + 1)}])

    assert reply.code == "provider_error"
    assert f"more than {MAX_RESPONSE_BYTES} bytes" in reply.detail


async def test_a_server_that_is_not_there_is_an_error():
    with MessagesServer([]) as server:
        pass
    provider = AnthropicMessages(
        api_key="k", base_url="http://127.0.0.1:1", headers={}, timeout_s=5
    )
    reply = await provider.complete(request(), Heard())
    await provider.close()

    assert server.requests == []
    assert (reply.code, reply.kind, reply.disposition) == (
        "provider_error",
        "connection",
        "retryable",
    )
