"""What a provider wants back with its turns and calls: it comes back to the byte, or not at all."""

import json

import pytest

from colony.testing.harness import at_random
from colony.testing.messages_server import MessagesServer
from colony.testing.model_server import ModelServer

TREES = pytest.mark.parametrize("tree", ["research", "research-settle"])
ROUNDS = 3

# What survives only where nobody reads it: odd spaces, escapes, big numbers, an order of keys.
ODD = 'need  the clock\n\t"é" \u2028 😀 \\u0041 '
SIGNATURE = {"z": 1, "a": [{}, [], None, 9007199254740993, 0.1], "thought_signature": "s=="}


def calls_of(number):
    return [(f"c{number}-{n}", f"lamp {number} {n}") for n in range(2)]


def completion(number):
    """An answer of a thinking model in the form of a chat completion."""
    if number == ROUNDS:
        message = {"role": "assistant", "content": "done"}
        return _completion(message, "stop")
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "web_search", "arguments": json.dumps({"query": query})},
            "extra_content": {"google": {**SIGNATURE, "number": number, "call": call_id}},
        }
        for call_id, query in calls_of(number)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return _completion({**message, "reasoning_content": f"{number}: {ODD}"}, "tool_calls")


def _completion(message, reason):
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"body": {"id": "x", "model": "m", "choices": [choice]}}


def message(number):
    """The same in the form of the Messages API."""
    if number == ROUNDS:
        return {"content": "done"}
    return {"content": thoughts_of(number)}


def thoughts_of(number):
    first, second = [
        {"type": "tool_use", "id": call_id, "name": "web_search", "input": {"query": query}}
        for call_id, query in calls_of(number)
    ]
    return [
        {"type": "thinking", "thinking": f"{number}: {ODD}", "signature": f"sig{number}=="},
        {"type": "redacted_thinking", "data": "AAAA"},
        first,
        {"type": "thinking", "thinking": f"and {number}", "signature": "s=="},
        second,
    ]


def of(provider, base_url):
    return {
        "COLONY_PROVIDER": provider,
        "COLONY_MODEL": "m",
        "COLONY_BASE_URL": base_url,
    }


def assert_completions_came_back(request, rounds):
    turns = [m for m in request.messages if m["role"] == "assistant"]
    expected = [completion(number)["body"]["choices"][0]["message"] for number in rounds]
    assert [turn["reasoning_content"] for turn in turns] == [
        turn["reasoning_content"] for turn in expected
    ]
    assert [json.dumps(c["extra_content"]) for turn in turns for c in turn["tool_calls"]] == [
        json.dumps(c["extra_content"]) for turn in expected for c in turn["tool_calls"]
    ]


def assert_thoughts_came_back(request, rounds):
    turns = [m["content"] for m in request.messages if m["role"] == "assistant"]
    assert json.dumps(turns) == json.dumps([thoughts_of(number) for number in rounds])


@TREES
async def test_a_thinking_model_gets_its_reasoning_back_in_every_round(start, tree):
    with ModelServer([completion(n) for n in range(ROUNDS + 1)]) as server:
        colony = await start(tree, environment=of("openai", server.base_url))
        trace = await colony.harness.ask("/prep", "Which lamps?")
        answer = await colony.answer(trace, at_random(3))

    assert answer == "done"
    assert server.refused == []
    for number, request in enumerate(server.requests):
        assert_completions_came_back(request, range(number))
    await colony.assert_clean(trace)


@TREES
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_thinking_blocks_go_back_where_they_stood_in_every_round(start, tree, stream):
    planner = {"/planner": {"stream": stream}}
    with MessagesServer([message(n) for n in range(ROUNDS + 1)]) as server:
        colony = await start(tree, environment=of("anthropic", server.base_url), more=planner)
        trace = await colony.harness.ask("/prep", "Which lamps?")
        answer = await colony.answer(trace, at_random(3))

    assert answer == "done"
    assert server.refused == []
    for number, request in enumerate(server.requests):
        assert_thoughts_came_back(request, range(number))
    await colony.assert_clean(trace)


@TREES
async def test_what_is_left_of_a_view_has_its_reasoning(start, tree):
    caps = {"/collector": {"max_rounds": 1}}
    with ModelServer([completion(n) for n in range(ROUNDS + 1)]) as server:
        colony = await start(tree, environment=of("openai", server.base_url), more=caps)
        trace = await colony.harness.ask("/prep", "Which lamps?")
        await colony.answer(trace)

    assert server.refused == []
    for number, request in enumerate(server.requests[1:], start=1):
        assert_completions_came_back(request, [number - 1])


@TREES
async def test_an_envelope_that_is_handled_again_keeps_the_reasoning_and_costs_no_call(start, tree):
    with MessagesServer([message(n) for n in range(ROUNDS + 1)]) as server:
        colony = await start(tree, environment=of("anthropic", server.base_url))
        harness = colony.harness
        trace = await harness.ask("/prep", "Which lamps?")
        while pending := await harness.pending():
            # Every handle is lost before its commit once, and what counts is the second.
            lost = await harness.decide(pending[0])
            step = await harness.decide(pending[0])
            assert [out.body for out in step.published] == [out.body for out in lost.published]
            await harness.commit(step)
        await harness.finish()

    assert len(server.requests) == ROUNDS + 1
    for number, request in enumerate(server.requests):
        assert_thoughts_came_back(request, range(number))
    await colony.assert_clean(trace)
