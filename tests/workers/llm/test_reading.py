"""Readings: every sample gives exactly its reading, directly and over HTTP, streamed or not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.testing.host import RecordingHost
from colony.testing.model_server import ModelServer
from colony.topology.model import ToolDeclaration
from tests.workers.llm.quirks import QUIRKS, RECOVERED, TOOLS, delta
from workers.llm import Llm
from workers.llm.answers.calls import made_up_id
from workers.llm.answers.reading import Asked, read_chunks, read_events, read_message, read_text
from workers.llm.provider import Answer, Failure, Reply

SAMPLES = Path(__file__).parents[2] / "cases" / "model-responses"

# What can only be said of a stream.
OF_A_STREAM = {"done_missing", "index_missing", "index_reused", "id_changed_mid_call"}

Sample = dict[str, Any]


def samples() -> Iterator[Any]:
    manifest = json.loads((SAMPLES / "manifest.json").read_text())
    for entry in manifest["samples"]:
        sample = json.loads((SAMPLES / entry["file"]).read_text())
        yield pytest.param(sample, entry["expect"], False, id=entry["file"])
        if "expect_with_text_recovery" in entry:
            expect = entry["expect_with_text_recovery"]
            yield pytest.param(sample, expect, True, id=f"{entry['file']} recovered")
    for name, (sample, expect) in QUIRKS.items():
        yield pytest.param(sample, expect, False, id=name)
    for name, (sample, expect) in RECOVERED.items():
        yield pytest.param(sample, expect, True, id=f"{name} recovered")


EVERY = pytest.mark.parametrize(("sample", "expect", "text_calls"), list(samples()))


def converted(sample: Sample, expect: Sample) -> tuple[Sample, Sample] | None:
    """The same answer streamed where it was not, and whole where it was; None where it has no
    other form: what is lost with a connection, or of how a stream is written."""
    if sample["mode"] == "message":
        return {**sample, "mode": "stream", "chunks": _chunks(sample["body"]), "done": True}, expect
    if sample["mode"] == "sse_raw" or "error" in expect or expect["outcome"] == "truncated":
        return None
    body = _body(sample["chunks"], expect)
    warnings = [one for one in expect["warnings"] if one not in OF_A_STREAM]
    return {**sample, "mode": "message", "body": body}, {**expect, "warnings": warnings}


def _chunks(body: Any) -> list[Any]:
    """A body in chunks, each call cut in the middle of its arguments."""
    if not (isinstance(body, dict) and body.get("choices")) or body["choices"][0].get("error"):
        return [body]
    (choice,) = body["choices"]
    head = {name: body[name] for name in ("id", "model") if name in body}
    message = dict(choice["message"])
    calls = message.pop("tool_calls", [])
    calls = [calls] if isinstance(calls, dict) else calls
    deltas = [message, *({"tool_calls": [f]} for n, c in enumerate(calls) for f in _cut(n, c))]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    usage = [{**head, "choices": [], "usage": body["usage"]}] if "usage" in body else []
    return [*({**head, "choices": [one]} for one in (*choices, last)), *usage]


def _cut(number: int, call: Any) -> list[Any]:
    arguments = (call.get("function") or {}).get("arguments")
    if not isinstance(arguments, str) or len(arguments) < 2:
        return [{"index": number, **call}]
    half = len(arguments) // 2
    opening = {**call, "function": {**call["function"], "arguments": arguments[:half]}}
    rest = {"index": number, "function": {"arguments": arguments[half:]}}
    return [{"index": number, **opening}, rest]


def _body(chunks: list[Any], expect: Sample) -> Any:
    """The body that says what the chunks are expected to say, under their last label."""
    choices = [c for chunk in chunks for c in chunk["choices"] if c.get("index", 0) == 0]
    labels = [c["finish_reason"] for c in choices if c.get("finish_reason")]
    message = {"role": "assistant", "content": expect["content"], **expect.get("preserve", {})}
    kept = expect.get("preserve_calls", [{}] * len(expect["tool_calls"]))
    calls = [
        {
            "id": _id(c),
            "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])},
            **k,
        }
        for c, k in zip(expect["tool_calls"], kept, strict=True)
    ]
    warned = set(expect["warnings"])
    if "arguments_not_string" in warned:
        calls[0]["function"]["arguments"] = expect["tool_calls"][0]["arguments"]
    if "call_duplicate_dropped" in warned:
        calls.append(calls[0])
    if "legacy_function_call" in warned:
        message["function_call"] = calls.pop()["function"]
    # Of several labels a body has one: the one that lies is left.
    label = labels[0] if "finish_reason_mismatch" in warned else (labels or [None])[-1]
    usage = next((c["usage"] for c in chunks if c.get("usage")), None)
    choice = {"message": {**message, "tool_calls": calls}, "finish_reason": label}
    return {"model": "m", "choices": [choice], "usage": usage}


def _id(call: Any) -> Any:
    return "" if call["id"] == "$synth" else call["id"]


def other_forms() -> Iterator[Any]:
    for param in samples():
        sample, expect, text_calls = param.values
        other = converted(sample, expect)
        if other is not None:
            yield pytest.param(*other, text_calls, id=param.id)


OTHER = pytest.mark.parametrize(("sample", "expect", "text_calls"), list(other_forms()))


# Directly


def read(sample: Sample, *, text_calls: bool) -> Reply:
    request = sample["request"]
    asked = Asked("m", "seed", frozenset(TOOLS), request.get("max_tokens"), text_calls)
    match sample["mode"]:
        case "message":
            return read_message(sample["body"], asked)
        case "stream":
            return read_chunks(sample["chunks"], asked, done=sample["done"])
        case _:
            return read_events(sample["text"], asked)


@EVERY
def test_a_sample_has_exactly_its_reading(sample: Sample, expect: Sample, text_calls: bool) -> None:
    reply = read(sample, text_calls=text_calls)

    assert_read(reply, expect)
    assert read(sample, text_calls=text_calls) == reply


@OTHER
def test_a_sample_in_the_other_form_has_the_same_reading(
    sample: Sample, expect: Sample, text_calls: bool
) -> None:
    assert_read(read(sample, text_calls=text_calls), expect)


def assert_read(reply: Reply, expect: Sample) -> None:
    if "error" in expect:
        assert isinstance(reply, Failure)
        error = expect["error"]
        assert (reply.code, reply.disposition) == (error["code"], error["retry_disposition"])
        assert reply.progress == error["stream_progress"]
        assert reply.retry_after_s == error.get("retry_after")
        return
    assert isinstance(reply, Answer)
    assert (reply.outcome, reply.finish_reason) == (expect["outcome"], expect["finish_reason"])
    assert reply.text == expect["content"]
    assert list(reply.warnings) == expect["warnings"]
    assert [named(c.name, c.arguments, c.problem) for c in reply.calls] == wanted(expect)
    assert_ids([call.id for call in reply.calls], expect)
    assert (reply.vendor or {}) == expect.get("preserve", {})
    kept = [call.vendor or {} for call in reply.calls]
    assert kept == expect.get("preserve_calls", [{}] * len(kept))
    usage = expect.get("usage", {})
    assert {"p": reply.tokens_prompt, "c": reply.tokens_completion}.items() >= {
        short: usage[name]
        for short, name in (("p", "prompt_tokens"), ("c", "completion_tokens"))
        if name in usage
    }.items()


def named(name: str, arguments: str, problem: str | None) -> tuple[Any, ...]:
    return (name, None, problem) if problem else (name, json.loads(arguments), None)


def wanted(expect: Sample) -> list[tuple[Any, ...]]:
    return [(c["name"], c.get("arguments"), c.get("error")) for c in expect["tool_calls"]]


def assert_ids(ids: list[str], expect: Sample) -> None:
    given = [call["id"] for call in expect["tool_calls"]]
    assert [i for i, want in zip(ids, given, strict=True) if want != "$synth"] == [
        want for want in given if want != "$synth"
    ]
    assert len(set(ids)) == len(ids)
    assert all(i and len(i) <= 64 and i.replace("-", "").replace("_", "").isalnum() for i in ids)


# Over HTTP


@EVERY
async def test_a_sample_that_is_served_has_its_reading(
    sample: Sample, expect: Sample, text_calls: bool
) -> None:
    emission = await served(sample, text_calls=text_calls)

    assert_emitted(emission, expect, streamed=sample["mode"] != "message")


@OTHER
async def test_a_sample_that_is_served_in_the_other_form_has_the_same_reading(
    sample: Sample, expect: Sample, text_calls: bool
) -> None:
    emission = await served(sample, text_calls=text_calls)

    assert_emitted(emission, expect, streamed=sample["mode"] != "message")


async def served(sample: Sample, *, text_calls: bool) -> Emission:
    match sample["mode"]:
        case "message":
            answer = {"body": sample["body"]}
        case "stream":
            answer = {"chunks": sample["chunks"], "done": sample["done"]}
        case _:
            answer = {"sse": sample["text"]}
    question = Body.model_validate({"messages": (Entry.say("user", "?"),)})
    envelope = Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=9, context={}, body=question)
    with ModelServer([answer]) as server:
        params = {
            "provider": "openai",
            "model": "m",
            "base_url": server.base_url,
            "max_tokens": sample["request"].get("max_tokens"),
            "attempts": 1,
            "stream": sample["mode"] != "message",
            "text_calls": text_calls,
        }
        tools = [ToolDeclaration(name=name, description="", parameters={}) for name in TOOLS]
        host = RecordingHost.of("llm", params, tools=tools)
        cell = Llm(Llm.Params.model_validate(params))
        await cell.start(host)
        try:
            (emission,) = await cell.handle(envelope, host)
        finally:
            await cell.stop()
    return emission


def assert_emitted(emission: Emission, expect: Sample, *, streamed: bool) -> None:
    hop, entries = emission.hop, emission.body.entries
    if "error" in expect:
        error = expect["error"]
        assert hop["finish_reason"] == "error"
        assert (hop["error_code"], hop["retry_disposition"]) == (
            error["code"],
            error["retry_disposition"],
        )
        assert hop.get("retry_after_s") == error.get("retry_after")
        return
    if expect["outcome"] == "empty":
        assert hop["error_code"] == "empty_answer"
        return
    calls = [json.loads(e.text or "") for e in entries if e.type == "tool_call"]
    assert hop["outcome"] == expect["outcome"]
    assert hop["finish_reason"] == ("tool_calls" if calls else expect["finish_reason"])
    assert [e.text for e in entries if e.type == "text"] == [t for t in [expect["content"]] if t]
    assert_ids([e.id or "" for e in entries if e.type == "tool_call"], expect)
    assert [named(c["name"], c["arguments"], c.get("problem")) for c in calls] == wanted(expect)
    meta = emission.body.__pydantic_extra__["meta"]
    assert sorted(meta.get("warnings", {})) == expect["warnings"]


def test_an_id_of_ours_that_a_server_gives_to_another_call_is_not_used_twice() -> None:
    made_up = made_up_id("seed", 1)
    calls = [{"id": made_up, "function": {"name": "a"}}, {"function": {"name": "b"}}]

    reply = read_message({"choices": [{"message": {"tool_calls": calls}}]}, Asked("m", "seed"))

    assert isinstance(reply, Answer)
    first, second = (call.id for call in reply.calls)
    assert first == made_up
    assert second not in ("", made_up)


def test_many_calls_without_ids_are_read_in_a_breath() -> None:
    calls = [{"function": {"name": "a", "arguments": "{}"}}] * 20_000
    fragments = [
        delta(tool_calls=[{"id": f"c-{n}", "function": {"name": "a"}}]) for n in range(20_000)
    ]

    whole = read_message({"choices": [{"message": {"tool_calls": calls}}]}, Asked("m", "seed"))
    streamed = read_chunks(fragments, Asked("m", "seed"), done=True)

    for reply in (whole, streamed):
        assert isinstance(reply, Answer)
        assert len({call.id for call in reply.calls}) == 20_000


@pytest.mark.parametrize(
    "first", ["data: {}", "event: x", "id: 1", "retry: 10", ": ping", "\ufeff"]
)
def test_events_are_known_by_their_first_line_though_none_were_asked_for(first: str) -> None:
    text = f"{first}\n\ndata: {json.dumps(delta('hi', 'stop'))}\n\ndata: [DONE]\n\n"

    reply = read_text(text, Asked(model="m", seed="s"))

    assert isinstance(reply, Answer)
    assert reply.text == "hi"
