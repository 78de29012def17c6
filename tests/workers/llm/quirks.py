"""Quirks of providers that nobody reported with a sample, each with the reading it should have.

In the style of the samples under `tests/cases`: what came, and what is made of it.
"""

from typing import Any

TOOLS = ["get_weather", "get_time", "search_docs", "delete_file"]

OSLO = '{"city":"Oslo"}'
CALLED = {"outcome": "tool_calls", "finish_reason": "tool_calls", "content": None}
TIME = {"id": "call_a", "name": "get_time", "arguments": {}}
WEATHER = {"id": "call_a", "name": "get_weather", "arguments": {"city": "Oslo"}}
LABEL_LIES = "finish_reason_mismatch"


def call(name: Any = "get_time", arguments: Any = "{}", call_id: Any = "call_a") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def message(content: Any = None, reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    """A whole body; `calls`, `usage` and `max_tokens` aside, the fields are the message's own."""
    calls, usage = fields.pop("calls", None), fields.pop("usage", None)
    limit = fields.pop("max_tokens", None)
    said = {"role": "assistant", "content": content, **fields}
    if calls is not None:
        said["tool_calls"] = calls
    body = {"id": "c", "model": "m", "choices": [{"message": said, "finish_reason": reason}]}
    if usage is not None:
        body["usage"] = usage
    return {"mode": "message", "body": body, "request": {"max_tokens": limit}}


def raw(body: Any) -> dict[str, Any]:
    return {"mode": "message", "body": body, "request": {}}


def stream(*chunks: Any, done: bool = True, **request: Any) -> dict[str, Any]:
    return {"mode": "stream", "chunks": list(chunks), "done": done, "request": request}


def sse(text: str) -> dict[str, Any]:
    return {"mode": "sse_raw", "text": text, "request": {}}


def delta(content: Any = None, reason: Any = None, **fields: Any) -> dict[str, Any]:
    said = {**({} if content is None else {"content": content}), **fields}
    return {"model": "m", "choices": [{"index": 0, "delta": said, "finish_reason": reason}]}


def part(**fragment: Any) -> dict[str, Any]:
    """A chunk with one fragment of a call."""
    function = {name: fragment.pop(name) for name in ("name", "arguments") if name in fragment}
    if function:
        fragment["function"] = function
    return delta(tool_calls=[fragment])


def end(reason: Any = "tool_calls") -> dict[str, Any]:
    return delta(reason=reason)


def answered(*calls: Any, warnings: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {**CALLED, "tool_calls": list(calls), "warnings": [*warnings], **more}


def said(content: str | None, *warnings: str, **more: Any) -> dict[str, Any]:
    expected = {"outcome": "message", "finish_reason": "stop", "content": content}
    return {**expected, "tool_calls": [], "warnings": [*warnings], **more}


def cut(*calls: tuple[str, str], warnings: tuple[str, ...] = (), content: Any = None) -> Any:
    refused = [{"id": i, "name": name, "error": "truncated"} for i, name in calls]
    expected = {"outcome": "truncated", "finish_reason": "length", "content": content}
    return {**expected, "tool_calls": refused, "warnings": [*warnings]}


def bad(error: str, name: str = "get_time") -> dict[str, Any]:
    return {"id": "call_a", "name": name, "error": error}


def failed(
    code: str, disposition: str, progress: str = "precommit", after: float | None = None
) -> dict[str, Any]:
    error = {"code": code, "retry_disposition": disposition, "stream_progress": progress}
    expected = {"outcome": "error", "finish_reason": None, "content": None, "tool_calls": []}
    wait = {} if after is None else {"retry_after": after}
    return {**expected, "warnings": [], "error": {**error, **wait}}


QUIRKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Labels
    "stop with calls": (message(calls=[call()]), answered(TIME, warnings=(LABEL_LIES,))),
    "tool_calls without a call": (message("hi", "tool_calls"), said("hi", LABEL_LIES)),
    "unknown label": (message("hi", "whatever"), said("hi", "finish_reason_unknown")),
    "label of a wrong type": (message("hi", 7), said("hi", "finish_reason_unknown")),
    "no label": (message("hi", None), said("hi", "finish_reason_missing")),
    "eos": (message("hi", "eos"), said("hi")),
    "tool_use": (message(reason="tool_use", calls=[call()]), answered(TIME)),
    "max_tokens with a text": (message("It is", "max_tokens"), cut(content="It is")),
    "length without anything": (message(None, "length"), cut()),
    "length beats arguments that are no JSON": (
        message(reason="length", calls=[call("get_weather", '{"ci')]),
        cut(("call_a", "get_weather")),
    ),
    "filter with a text": (
        message("I was about", "content_filter"),
        {**said("I was about"), "outcome": "refused", "finish_reason": "content_filter"},
    ),
    "refusal under stop": (message(None, refusal="No."), {**said("No."), "outcome": "refused"}),
    "calls beside a text": (
        message("One moment.", "tool_calls", calls=[call()]),
        answered(TIME, content="One moment."),
    ),
    # The limit that was reached and not admitted
    "cut under tool_calls": (
        message(
            reason="tool_calls",
            calls=[call(), call("get_weather", '{"city":"Os', "call_b")],
            usage={"prompt_tokens": 1, "completion_tokens": 20},
            max_tokens=20,
        ),
        cut(("call_a", "get_time"), ("call_b", "get_weather"), warnings=(LABEL_LIES,)),
    ),
    "broken below the limit": (
        message(
            reason="tool_calls",
            calls=[call("get_weather", '{"city":"Os')],
            usage={"prompt_tokens": 1, "completion_tokens": 19},
            max_tokens=20,
        ),
        answered(bad("invalid_arguments", "get_weather")),
    ),
    "a list at the limit is no cut object": (
        message(
            reason="tool_calls",
            calls=[call("get_weather", "[1]")],
            usage={"prompt_tokens": 1, "completion_tokens": 20},
            max_tokens=20,
        ),
        answered(bad("invalid_arguments", "get_weather")),
    ),
    "one call without its list": (message(reason="tool_calls", calls=call()), answered(TIME)),
    # Ids
    "one id, two calls": (
        message(reason="tool_calls", calls=[call(), call("get_weather", OSLO)]),
        answered(TIME, {**WEATHER, "id": "$synth"}, warnings=("id_duplicate",)),
    ),
    "number for an id": (
        message(reason="tool_calls", calls=[call(call_id=7)]),
        answered({**TIME, "id": "7"}, warnings=("id_not_string",)),
    ),
    "null for an id": (
        message(reason="tool_calls", calls=[call(call_id=None)]),
        answered({**TIME, "id": "$synth"}, warnings=("id_synthesized",)),
    ),
    "two equal calls without ids are two": (
        message(reason="tool_calls", calls=[call(call_id=""), call(call_id="")]),
        answered({**TIME, "id": "$synth"}, {**TIME, "id": "$synth"}, warnings=("id_synthesized",)),
    ),
    "repeated with its arguments spaced otherwise": (
        message(
            reason="tool_calls",
            calls=[call("get_weather", OSLO), call("get_weather", '{ "city": "Oslo" }')],
        ),
        answered(WEATHER, warnings=("call_duplicate_dropped",)),
    ),
    "repeat of the second of two calls with one id": (
        message(
            reason="tool_calls",
            calls=[call(), call("get_weather", OSLO), call("get_weather", OSLO)],
        ),
        answered(
            TIME,
            {**WEATHER, "id": "$synth"},
            warnings=("call_duplicate_dropped", "id_duplicate"),
        ),
    ),
    # Arguments
    "object for arguments": (
        message(reason="tool_calls", calls=[call("get_weather", {"city": "Oslo"})]),
        answered(WEATHER, warnings=("arguments_not_string",)),
    ),
    "empty text for arguments": (
        message(reason="tool_calls", calls=[call(arguments="")]),
        answered(TIME),
    ),
    "no arguments": (
        message(
            reason="tool_calls",
            calls=[{"id": "call_a", "type": "function", "function": {"name": "get_time"}}],
        ),
        answered(TIME),
    ),
    "arguments that are no JSON": (
        message(reason="tool_calls", calls=[call(arguments="{'city': 'Oslo'}")]),
        answered(bad("invalid_arguments")),
    ),
    "text behind the arguments": (
        message(reason="tool_calls", calls=[call(arguments="{}{}")]),
        answered(bad("invalid_arguments")),
    ),
    "list encoded twice": (
        message(reason="tool_calls", calls=[call(arguments='"[1]"')]),
        answered(bad("invalid_arguments")),
    ),
    "object encoded three times": (
        message(reason="tool_calls", calls=[call(arguments='"\\"{}\\""')]),
        answered(bad("invalid_arguments")),
    ),
    "list for arguments": (
        message(reason="tool_calls", calls=[call(arguments=[1])]),
        answered(bad("invalid_arguments"), warnings=("arguments_not_string",)),
    ),
    "number that JSON has not": (
        message(reason="tool_calls", calls=[call(arguments='{"a": NaN}')]),
        answered(bad("invalid_arguments")),
    ),
    # Names
    "space around a name": (
        message(reason="tool_calls", calls=[call(" get_time\n")]),
        answered(TIME),
    ),
    "only space for a name": (
        message(reason="tool_calls", calls=[call("  ")]),
        answered(bad("missing_name", "")),
    ),
    "one call is well and one has no name": (
        message(reason="tool_calls", calls=[call(), call(None, "{}", "call_b")]),
        answered(TIME, {"id": "call_b", "name": "", "error": "missing_name"}),
    ),
    "an unknown tool is for whoever runs tools": (
        message(reason="tool_calls", calls=[call("fly")]),
        answered({**TIME, "name": "fly"}),
    ),
    # Content
    "nothing at all": (message(None), {**said(None), "outcome": "empty"}),
    "parts": (message([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), said("ab")),
    "a number for content": (message(7), {**said(None), "outcome": "empty"}),
    "reasoning and no answer": (
        message("", reasoning_content="hm"),
        {**said(None), "outcome": "empty", "preserve": {"reasoning_content": "hm"}},
    ),
    # Fields that go back
    "signature of a call": (
        message(
            reason="tool_calls",
            calls=[{**call(), "extra_content": {"google": {"thought_signature": "s=="}}}],
        ),
        answered(
            TIME, preserve_calls=[{"extra_content": {"google": {"thought_signature": "s=="}}}]
        ),
    ),
    "signature within a function": (
        message(
            reason="tool_calls",
            calls=[
                {
                    "id": "call_a",
                    "function": {"name": "get_time", "arguments": "{}", "thought_signature": "s"},
                }
            ],
        ),
        answered(TIME, preserve_calls=[{"function": {"thought_signature": "s"}}]),
    ),
    "details of reasoning": (
        message("hi", reasoning_details=[{"type": "reasoning.text", "text": "hm"}]),
        said("hi", preserve={"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
    ),
    # Bodies
    "choices null": (raw({"choices": None}), failed("no_choices", "retryable")),
    "an empty object": (raw({}), failed("no_choices", "retryable")),
    "error of a server": (
        raw({"error": {"message": "bad gateway", "code": 502}}),
        failed("provider_error", "retryable"),
    ),
    "error with a rate": (
        raw({"error": {"message": "slow", "code": "rate_limit_exceeded", "retry_after": "3"}}),
        failed("rate_limited", "retryable", after=3),
    ),
    "overloaded": (
        raw({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
        failed("provider_error", "retryable"),
    ),
    "error of a key": (
        raw({"error": {"message": "no", "code": "invalid_api_key"}}),
        failed("auth", "permanent"),
    ),
    "detail that is a list": (
        raw({"detail": [{"loc": ["body"], "msg": "bad"}]}),
        failed("provider_error", "unknown"),
    ),
    "error that is a text": (raw({"error": "something"}), failed("provider_error", "unknown")),
    "error that is the body": (
        raw({"object": "error", "message": "no such model", "code": 404}),
        failed("model_not_found", "permanent"),
    ),
    "error beside a choice": (
        raw({"choices": [{"error": {"code": 503, "message": "gone"}, "message": {}}]}),
        failed("provider_error", "retryable"),
    ),
    "error null": (
        raw({"error": None, **message("hi")["body"]}),
        said("hi"),
    ),
    # Streams: which call a fragment belongs to
    "index always zero": (
        stream(
            part(index=0, id="call_a", name="get_weather", arguments=""),
            part(index=0, arguments=OSLO),
            part(index=0, id="call_b", name="get_time", arguments="{}"),
            end(),
        ),
        answered(WEATHER, {**TIME, "id": "call_b"}, warnings=("index_reused",)),
    ),
    "index always zero and no ids": (
        stream(
            part(index=0, name="get_weather", arguments=OSLO),
            part(index=0, name="get_time", arguments="{}"),
            end(),
        ),
        answered(
            {**WEATHER, "id": "$synth"},
            {**TIME, "id": "$synth"},
            warnings=("id_synthesized", "index_reused"),
        ),
    ),
    "id before its name": (
        stream(
            part(index=0, id="call_a"),
            part(index=0, name="get_weather"),
            part(index=0, arguments=OSLO),
            end(),
        ),
        answered(WEATHER),
    ),
    "name before its id": (
        stream(
            part(index=0, name="get_weather", arguments='{"city":'),
            part(index=0, id="call_a", arguments='"Oslo"}'),
            end(),
        ),
        answered(WEATHER),
    ),
    "id empty after the first": (
        stream(
            part(index=0, id="call_a", name="get_weather", arguments='{"city":'),
            part(index=0, id="", name="", arguments='"Oslo"}'),
            end(),
        ),
        answered(WEATHER),
    ),
    "id alone and no index goes on": (
        stream(
            part(id="call_a", name="get_weather", arguments='{"city":'),
            part(id="call_x", arguments='"Oslo"}'),
            end(),
        ),
        answered(WEATHER, warnings=("id_changed_mid_call", "index_missing")),
    ),
    "fragments without an index found by their id": (
        stream(
            part(id="call_a", name="get_weather", arguments='{"city":'),
            part(id="call_b", name="get_time", arguments="{}"),
            part(id="call_a", arguments='"Oslo"}'),
            end(),
        ),
        answered(WEATHER, {**TIME, "id": "call_b"}, warnings=("index_missing",)),
    ),
    "index that begins at one": (
        stream(part(index=1, id="call_a", name="get_time", arguments="{}"), end()),
        answered(TIME),
    ),
    "index as a text": (
        stream(part(index="0", id="call_a", name="get_time", arguments="{}"), end()),
        answered(TIME),
    ),
    "arguments null at first": (
        stream(
            part(index=0, id="call_a", name="get_weather", arguments=None),
            part(index=0, arguments=OSLO),
            end(),
        ),
        answered(WEATHER),
    ),
    "exact repeat under another index": (
        stream(
            part(index=0, id="call_a", name="get_time", arguments="{}"),
            part(index=1, id="call_a", name="get_time", arguments="{}"),
            end(),
        ),
        answered(TIME, warnings=("call_duplicate_dropped",)),
    ),
    "signature in a fragment": (
        stream(
            part(index=0, id="call_a", name="get_time", arguments="{}", extra_content={"s": 1}),
            end(),
        ),
        answered(TIME, preserve_calls=[{"extra_content": {"s": 1}}]),
    ),
    "one fragment without its list": (
        stream(
            delta(tool_calls={"index": 0, "id": "call_a", "function": {"name": "get_time"}}), end()
        ),
        answered(TIME),
    ),
    # Streams: how they end
    "stop in the middle": (
        stream(
            delta("One moment.", "stop"),
            part(index=0, id="call_a", name="get_time", arguments="{}"),
            end(),
        ),
        answered(TIME, warnings=(LABEL_LIES,), content="One moment."),
    ),
    "text after the label": (stream(delta("Hel"), end("stop"), delta("lo")), said("Hello")),
    "done without a label": (stream(delta("hi")), said("hi", "finish_reason_missing")),
    "done without a label, call whole": (
        stream(part(index=0, id="call_a", name="get_time", arguments="{}")),
        answered(TIME, warnings=("finish_reason_missing",)),
    ),
    "end without a label, with a text": (
        stream(delta("It is"), done=False),
        failed("provider_error", "retryable", "visible"),
    ),
    "end without a label, with a call": (
        stream(part(index=0, id="call_a", name="get_time", arguments="{}"), done=False),
        failed("provider_error", "retryable", "visible"),
    ),
    "end with nothing but space": (
        stream(delta(" \n"), done=False),
        failed("provider_error", "retryable"),
    ),
    "end before anything": (stream(done=False), failed("provider_error", "retryable")),
    "error after a text": (
        stream(delta("It is"), {"error": {"message": "gone", "code": 503}}, done=False),
        failed("provider_error", "retryable", "visible"),
    ),
    "error after a label": (
        stream(delta("It is", "stop"), {"error": {"message": "gone", "code": 503}}),
        failed("provider_error", "retryable", "visible"),
    ),
    "label that says error": (
        stream(delta("It is", "error")),
        failed("provider_error", "unknown", "visible"),
    ),
    "length with a whole call": (
        stream(part(index=0, id="call_a", name="get_time", arguments="{}"), end("length")),
        cut(("call_a", "get_time")),
    ),
    "filter in the middle": (
        stream(delta("I was"), end("content_filter")),
        {**said("I was"), "outcome": "refused", "finish_reason": "content_filter"},
    ),
    "done and no choice": (
        stream({"choices": [], "usage": {"prompt_tokens": 1}}),
        failed("no_choices", "retryable"),
    ),
    # Streams: shapes of a chunk
    "delta null": (
        stream(delta("hi"), {"choices": [{"delta": None, "finish_reason": "stop"}]}),
        said("hi"),
    ),
    "no delta": (stream(delta("hi"), {"choices": [{"finish_reason": "stop"}]}), said("hi")),
    "the whole message at the end": (
        stream({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}),
        said("hi"),
    ),
    "another choice": (
        stream(
            delta("hi"),
            {"choices": [{"index": 1, "delta": {"content": "ho"}, "finish_reason": "stop"}]},
            end("stop"),
        ),
        said("hi"),
    ),
    "usage beside the last choice": (
        stream(delta("hi"), {**end("stop"), "usage": {"prompt_tokens": 4}}),
        said("hi", usage={"prompt_tokens": 4}),
    ),
    "reasoning in pieces": (
        stream(
            delta(reasoning_content="need "),
            delta(reasoning_content="the clock"),
            part(index=0, id="call_a", name="get_time", arguments="{}"),
            end(),
        ),
        answered(TIME, preserve={"reasoning_content": "need the clock"}),
    ),
    "details of reasoning in pieces": (
        stream(
            delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "need "}]),
            delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "it"}]),
            delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "signature": "s"}]),
            delta("hi", "stop"),
        ),
        said(
            "hi",
            preserve={
                "reasoning_details": [
                    {"type": "reasoning.text", "index": 0, "text": "need it", "signature": "s"}
                ]
            },
        ),
    ),
    "older function_call in pieces": (
        stream(
            delta(function_call={"name": "get_weather", "arguments": ""}),
            delta(function_call={"arguments": OSLO}),
            end("function_call"),
        ),
        answered({**WEATHER, "id": "$synth"}, warnings=("id_synthesized", "legacy_function_call")),
    ),
    # Events
    "event of an error": (
        sse('event: error\ndata: {"message": "slow", "code": 429}\n\n'),
        failed("rate_limited", "retryable"),
    ),
    "field of an error": (
        sse(
            'data: {"choices":[{"delta":{"content":"a"}}]}\n\nerror: {"code":500,"message":"x"}\n\n'
        ),
        failed("provider_error", "retryable", "visible"),
    ),
    "error without the word data": (
        sse('{"error": {"message": "slow down", "code": 429}}\n'),
        failed("rate_limited", "retryable"),
    ),
    "event that is no JSON": (sse("data: oops\n\n"), failed("provider_error", "unknown")),
    "last event cut": (
        sse('data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[{"del'),
        failed("provider_error", "retryable", "visible"),
    ),
    "no blank line at the end": (
        sse('data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]'),
        said("a"),
    ),
    "carriage returns alone": (
        sse(
            'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\r\r'
            "data:[DONE]\r\r"
        ),
        said("a"),
    ),
    "data on two lines": (
        sse('data: {"choices":[{"delta":\ndata: {"content":"a"},"finish_reason":"stop"}]}\n\n'),
        said("a", "done_missing"),
    ),
    "ids, retries and other fields": (
        sse(
            "\ufeffretry: 3\nid: 7\nevent: message\n"
            'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
            "data: [DONE]\n\ndata: {}\n\n"
        ),
        said("a"),
    ),
    # Calls in the text
    "call as JSON": (
        message('{"name": "get_time", "arguments": {}}'),
        said('{"name": "get_time", "arguments": {}}', "tool_call_in_text"),
    ),
    "call of a tool that is not offered": (
        message('{"name": "fly", "arguments": {}}'),
        said('{"name": "fly", "arguments": {}}'),
    ),
    "JSON that is no call": (message('{"name": "get_time"}'), said('{"name": "get_time"}')),
    "call within prose": (
        message('Say {"name": "get_time", "arguments": {}} for it.'),
        said('Say {"name": "get_time", "arguments": {}} for it.'),
    ),
}

TWO_TAGS = (
    '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>\n'
    '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\":\\"Oslo\\"}"}</tool_call>'
)

# With `text_calls`.
RECOVERED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two calls in tags": (
        message(TWO_TAGS),
        answered(
            {**TIME, "id": "$synth"},
            {**WEATHER, "id": "$synth"},
            warnings=("id_synthesized", "tool_call_in_text"),
        ),
    ),
    "list of calls": (
        message('[{"name": "get_weather", "parameters": {"city": "Oslo"}}]'),
        answered({**WEATHER, "id": "$synth"}, warnings=("id_synthesized", "tool_call_in_text")),
    ),
    "function in an object": (
        message('{"function": {"name": "get_time", "arguments": {}}}', None),
        answered(
            {**TIME, "id": "$synth"},
            warnings=("finish_reason_missing", "id_synthesized", "tool_call_in_text"),
        ),
    ),
    "one of two is not offered": (
        message('[{"name": "get_time", "arguments": {}}, {"name": "fly", "arguments": {}}]'),
        said('[{"name": "get_time", "arguments": {}}, {"name": "fly", "arguments": {}}]'),
    ),
    "prose before a tag": (
        message('So: <tool_call>{"name": "get_time", "arguments": {}}</tool_call>'),
        said('So: <tool_call>{"name": "get_time", "arguments": {}}</tool_call>'),
    ),
    "cut by length": (
        message('{"name": "get_time", "arguments": {}}', "length"),
        {
            "outcome": "truncated",
            "finish_reason": "length",
            "content": None,
            "tool_calls": [{"id": "$synth", "name": "get_time", "error": "truncated"}],
            "warnings": ["id_synthesized", "tool_call_in_text"],
        },
    ),
}
