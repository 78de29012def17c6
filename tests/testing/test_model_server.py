from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from openai import OpenAI

from colony.testing.model_server import ModelRequest, ModelServer

USER = {"role": "user", "content": "hi"}


def calls(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": i, "type": "function", "function": function} for i in ids],
    }


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "found"}


def post(server: ModelServer, *messages: Any, **more: Any) -> httpx.Response:
    url = f"{server.base_url}/chat/completions"
    return httpx.post(url, json={"model": "m", "messages": list(messages), **more})


def test_script_is_played_in_order_to_the_official_client() -> None:
    call = {"id": "c-1", "name": "look", "arguments": {"at": "x"}}
    with ModelServer([{"tool_calls": [call], "text": "one moment"}, {"text": "done"}]) as server:
        client = OpenAI(api_key="k", base_url=server.base_url, max_retries=0)
        with client:
            first = client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
            second = client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]

    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "one moment"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].to_dict()["function"] == {
        "name": "look",
        "arguments": '{"at": "x"}',
    }
    assert first.usage is not None
    assert second.choices[0].message.content == "done"
    assert second.choices[0].finish_reason == "stop"
    assert server.requests[0].headers["authorization"] == "Bearer k"
    assert server.requests[1].messages == [USER]


@pytest.mark.parametrize(
    "thread",
    [
        [USER, calls("a", "b"), result("b"), result("a")],
        [USER, calls("a"), result("a"), {"role": "assistant", "content": "x"}, USER],
        [USER, calls("a"), result("a"), calls("a"), result("a")],
    ],
)
def test_a_thread_whose_calls_and_results_pair_is_accepted(thread: list[Any]) -> None:
    with ModelServer([{"text": "fine"}]) as server:
        assert post(server, *thread).status_code == 200


@pytest.mark.parametrize(
    "thread",
    [
        [],
        [USER, calls("a")],
        [USER, calls("a", "b"), result("a")],
        [USER, calls("a", "b"), result("a"), USER],
        [USER, calls("a"), USER, result("a")],
        [USER, calls("a"), calls("b"), result("a"), result("b")],
        [USER, calls("a"), result("a"), result("a")],
        [USER, calls("a", "a"), result("a")],
        [USER, result("a")],
        [USER, calls("a"), result("b")],
        [USER, calls()],
        [USER, {**calls("a"), "tool_calls": [{"id": "a", "type": "function"}]}, result("a")],
        [USER, {"role": "nobody", "content": "x"}],
        ["text"],
    ],
)
def test_any_other_thread_is_refused_and_uses_up_nothing_of_the_script(thread: list[Any]) -> None:
    with ModelServer([{"text": "fine"}]) as server:
        refused = post(server, *thread)
        answered = post(server, USER)

    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert answered.json()["choices"][0]["message"]["content"] == "fine"
    assert len(server.refused) == 1


def test_errors_bodies_and_headers_are_sent_as_they_stand() -> None:
    script = [
        {"status": 429, "body": {"error": {"message": "slow"}}, "headers": {"Retry-After": "2"}},
        {"body": "<html>"},
        {"text": "x", "usage": None, "finish_reason": "length"},
    ]
    with ModelServer(script) as server:
        limited, text, short = (post(server, USER) for _ in range(3))
        exhausted = post(server, USER)

    assert (limited.status_code, limited.headers["retry-after"]) == (429, "2")
    assert (text.status_code, text.text) == (200, "<html>")
    assert "usage" not in short.json()
    assert short.json()["choices"][0]["finish_reason"] == "length"
    assert exhausted.status_code == 500


def test_a_function_answers_each_request_by_what_it_holds() -> None:
    def answer(request: ModelRequest) -> Mapping[str, Any]:
        return {"text": f"{request.messages[-1]['content']}!"}

    with ModelServer(answer) as server:
        replies = [post(server, {"role": "user", "content": word}) for word in ("a", "b")]

    assert [r.json()["choices"][0]["message"]["content"] for r in replies] == ["a!", "b!"]


def test_what_is_no_json_object_is_refused() -> None:
    with ModelServer([]) as server:
        url = f"{server.base_url}/chat/completions"
        assert httpx.post(url, content=b"{").status_code == 400
        assert httpx.post(url, json=[]).status_code == 400


def test_an_answer_is_streamed_to_the_official_client_as_it_would_be_sent_whole() -> None:
    call = {"id": "c-1", "name": "look", "arguments": {"at": "x"}}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    with ModelServer([{"tool_calls": [call], "text": "one moment", "usage": usage}]) as server:
        client = OpenAI(api_key="k", base_url=server.base_url, max_retries=0)
        with (
            client,
            client.chat.completions.create(
                model="m",
                messages=[USER],  # type: ignore[list-item]
                stream=True,
                stream_options={"include_usage": True},
            ) as stream,
        ):
            chunks = list(stream)

    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    functions = [c.function for delta in deltas for c in delta.tool_calls or ()]
    assert [delta.content for delta in deltas if delta.content] == ["one ", "moment"]
    assert "".join(f.arguments or "" for f in functions if f) == '{"at": "x"}'
    assert [f.name for f in functions if f and f.name] == ["look"]
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "tool_calls"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 7


def test_usage_is_streamed_only_to_those_who_ask() -> None:
    with ModelServer([{"text": "x"}]) as server:
        text = post(server, USER, stream=True).text

    assert "usage" not in text
    assert text.endswith("data: [DONE]\n\n")


def test_chunks_and_events_are_sent_as_they_stand() -> None:
    script = [{"chunks": [{"a": 1}, {"b": 2}], "done": False}, {"sse": ": x\r\n\r\n"}]
    with ModelServer(script) as server:
        chunks, raw = (post(server, USER, stream=True) for _ in range(2))

    assert chunks.text == 'data: {"a": 1}\n\ndata: {"b": 2}\n\n'
    assert chunks.headers["content-type"].startswith("text/event-stream")
    assert raw.text == ": x\r\n\r\n"


def test_a_stream_that_is_cut_breaks_the_connection() -> None:
    with ModelServer([{"text": "one two three", "cut_after": 2}]) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            post(server, USER, stream=True)
