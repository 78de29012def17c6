"""`colony thread`: what a model was sent, byte for byte, and what the record holds."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.testing.harness import Harness
from colony.testing.messages_server import MessagesServer
from colony.testing.model_server import ModelServer
from colony.topology.load import load
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec
from colony.trees import shipped

CALL = {"text": "I look.", "tool_calls": [{"id": "c-1", "name": "tool-a", "arguments": {"q": "ä"}}]}
BUSY = {"status": 503, "body": {"error": {"message": "busy"}}}
CUT = {"text": "It is", "finish_reason": "length"}


@dataclass
class Asked:
    """A question that was answered in two rounds."""

    trace_id: str
    sent: list[bytes]


@pytest.fixture
def asked(redis_url: str) -> Asked:
    async def ask(base_url: str) -> str:
        place = {"provider": "openai", "model": "m-1", "base_url": base_url, "max_tokens": 5}
        spec = load(shipped("tool-loop"), environment={}).publishable()
        cells = [
            cell.model_copy(update={"params": place}) if cell.path == "/llm" else cell
            for cell in spec.cells
        ]
        async with Harness(redis_url, spec.model_copy(update={"cells": tuple(cells)})) as harness:
            trace_id = await harness.ask("/capture", "What is it?", context={"turn_id": "q-1"})  # type: ignore[arg-type]
            await harness.finish()
            return trace_id

    with ModelServer([CALL, CUT, {"text": "It is blue."}]) as server:
        trace_id = asyncio.run(ask(server.base_url))
    return Asked(trace_id, [request.content for request in server.requests])


def named(*arguments: str) -> tuple[str, ...]:
    return ("thread", *arguments, "--name", "stepped")


def test_a_request_is_printed_byte_for_byte(colony: Any, asked: Asked) -> None:
    first, _, newest = asked.sent

    assert colony(*named("q-1", "--raw")).stdout_bytes == newest
    assert colony(*named("q-1", "--raw", "--iter", "0")).stdout_bytes == first
    assert colony(*named(asked.trace_id, "--raw", "--cell", "/llm")).stdout_bytes == newest


def test_a_request_is_shown_message_by_message(colony: Any, asked: Asked) -> None:
    head, beside, settings, *lines = colony(*named("q-1")).stdout.splitlines()

    assert head.startswith("/llm  iter 1  openai m-1  attempt 2  ")
    assert beside.startswith("  beside: /llm  iter 1  openai m-1  attempt 1  ")
    assert settings == "model=m-1 temperature=0.7 max_tokens=10"
    messages = json.loads(asked.sent[-1])["messages"]
    sizes = [len(compact(message)) for message in messages]
    assert lines == [
        "",
        f"[0]  system  {sizes[0]} bytes",
        messages[0]["content"],
        "",
        f"[1]  user  {sizes[1]} bytes",
        "What is it?",
        "",
        f"[2]  assistant  {sizes[2]} bytes",
        "I look.",
        f"→ tool-a c-1  {messages[2]['tool_calls'][0]['function']['arguments']}",
        "",
        f"[3]  tool  c-1  {sizes[3]} bytes",
        messages[3]["content"],
    ]


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def test_a_request_is_told_as_json(colony: Any, asked: Asked) -> None:
    told = colony.json(*named("q-1", "--iter", "0"))

    assert told["body"] == json.loads(asked.sent[0])
    assert told["request"]["size"] == len(asked.sent[0])
    assert (told["request"]["trace_id"], told["request"]["iter"]) == (asked.trace_id, 0)
    assert told["beside"] == []


def test_the_record_is_shown_row_by_row(colony: Any, asked: Asked) -> None:
    lines = colony(*named("q-1", "--record")).stdout.splitlines()
    rows = colony.json(*named("q-1", "--record"))

    assert lines[1::2] == [row["row"]["turn"] for row in rows]
    assert lines[0].startswith("/store:")
    assert " iter 0  user  " in lines[0]
    assert lines[0].endswith(f"  {rows[0]['size']} bytes")
    assert {row["row"]["role"] for row in rows} == {"user", "assistant", "tool"}
    assert colony.json(*named("q-1", "--record", "--iter", "0")) == rows


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nobody",), "thread_not_found: nothing is kept of the question nobody"),
        (("nobody", "--record"), "thread_not_found: nothing is kept of the question nobody"),
        (
            ("q-1", "--record", "--iter", "9"),
            "thread_not_found: no row of round 9 is kept of the question q-1",
        ),
        (("q-1", "--iter", "9"), "/llm in iteration 9 sent nothing that is kept, but /llm in 0, 1"),
        (("q-1", "--raw", "--format", "json"), "--raw is bytes"),
        (("q-1", "--record", "--cell", "/llm"), "go with --view"),
    ],
)
def test_what_cannot_be_shown_is_said(
    colony: Any, asked: Asked, arguments: tuple[str, ...], complaint: str
) -> None:
    result = colony(*named(*arguments), status=2)

    assert complaint in result.stderr
    assert not result.stdout


def test_a_request_of_another_protocol_is_shown_as_well(colony: Any, redis_url: str) -> None:
    block = {"type": "tool_use", "id": "c-1", "name": "look", "input": {"q": "ä"}}
    offered = {"name": "look", "description": "d", "parameters": {"type": "object"}}
    declared = {"text": json.dumps({"type": "function", "function": offered})}
    system = {"identity": {"text": "You are terse."}, "tools": {"look": declared}}

    async def ask(base_url: str) -> str:
        place = {"provider": "anthropic", "model": "m-1", "base_url": base_url}
        llm = CellSpec(path="/llm", cell=CellSettings(type="llm"), params=place)
        out = CellSpec(path="/out", cell=CellSettings(type="sink"))
        spec = TopologySpec(cells=(llm, out), edges=(EdgeSpec(source="/llm", target="/out"),))
        function = json.dumps({"name": "look", "arguments": json.dumps({"q": "ä"})})
        call = Entry(origin="assistant", type="tool_call", id="c-1", text=function)
        thread = [
            Entry.say("user", "What is it?"),
            call,
            Entry.say("assistant", "I look."),
            Entry.result("c-1", "blue"),
        ]
        async with Harness(redis_url, spec) as harness:
            body = Body.parse({"messages": [e.to_json() for e in thread], "system": system})
            trace_id = await harness.send("/llm", body)
            await harness.finish()
            return trace_id

    with MessagesServer([{"content": "It is blue."}]) as server:
        trace_id = asyncio.run(ask(server.base_url))

    _, settings, tools, *lines = colony(*named(trace_id)).stdout.splitlines()
    assert settings.startswith("model=m-1 max_tokens=4096")
    assert tools == "tools: look"
    assert lines[:3] == ["", "system", "You are terse."]
    assert json.dumps(block, ensure_ascii=False) in lines
    assert [line for line in lines if line.startswith("[")] == [
        f"[{n}]  {message['role']}  {len(compact(message))} bytes"
        for n, message in enumerate(server.requests[0].messages)
    ]
