"""`colony thread`: what a model was sent, byte for byte, and what the record holds."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from colony.access.thread_tables import RecordedRow
from colony.body import Body, Entry
from colony.cli.thread_rows import answer_lines, row_lines
from colony.cli.thread_view import view
from colony.testing.harness import Harness
from colony.testing.messages_server import MessagesServer
from colony.testing.model_server import ModelServer
from colony.topology.load import load
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec
from colony.trees import shipped
from tests.colonies.cells import with_params
from tests.colonies.folding import Model, folding_tree, serving, summary

CALL = {"text": "I look.", "tool_calls": [{"id": "c-1", "name": "tool-a", "arguments": {"q": "ä"}}]}
BUSY = {"status": 503, "body": {"error": {"message": "busy"}}}
CUT = {"text": "It is", "finish_reason": "length"}


@dataclass
class Asked:
    """A question that was answered in two rounds."""

    trace_id: str
    sent: list[bytes]


def tool_loop(base_url: str) -> TopologySpec:
    """The tool loop with a model behind an address."""
    place = {"provider": "openai", "model": "m-1", "base_url": base_url, "max_tokens": 5}
    spec = load(shipped("tool-loop"), environment={}).publishable()
    cells = [
        cell.model_copy(update={"params": place}) if cell.path == "/llm" else cell
        for cell in spec.cells
    ]
    return spec.model_copy(update={"cells": tuple(cells)})


@pytest.fixture
def asked(redis_url: str) -> Asked:
    async def ask(base_url: str) -> str:
        async with Harness(redis_url, tool_loop(base_url)) as harness:
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
    head, beside, rounds, settings, *lines = colony(*named("q-1")).stdout.splitlines()

    assert head.startswith("/llm  iter 1  openai m-1  attempt 2  ")
    assert beside.startswith("  beside: /llm  iter 1  openai m-1  attempt 1  ")
    assert rounds == "  2 rounds: 0…1 (--iter N)"
    assert settings == "model=m-1 temperature=0.7 max_tokens=10"
    messages = json.loads(asked.sent[-1])["messages"]
    arguments = messages[2]["tool_calls"][0]["function"]["arguments"]
    texts = [message["content"] for message in messages]
    texts[2] += arguments
    sizes = [len(text.encode()) for text in texts]
    assert sizes[1] == len("What is it?")
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
        f"→ tool-a c-1  {arguments}",
        "",
        f"[3]  tool  c-1  {sizes[3]} bytes",
        messages[3]["content"],
    ]


def said(content: Any) -> list[bytes]:
    """The texts of blocks, and whole those that are none."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [
        str(
            block["text"] if block["type"] == "text" else json.dumps(block, ensure_ascii=False)
        ).encode()
        for block in blocks
    ]


def test_a_request_is_told_as_json(colony: Any, asked: Asked) -> None:
    told = colony.json(*named("q-1", "--iter", "0"))

    assert told["body"] == json.loads(asked.sent[0])
    assert told["request"]["size"] == len(asked.sent[0])
    assert (told["request"]["trace_id"], told["request"]["iter"]) == (asked.trace_id, 0)
    assert told["beside"] == []


def test_the_record_is_shown_row_by_row(colony: Any, asked: Asked) -> None:
    lines = colony(*named("q-1", "--record")).stdout.splitlines()
    rows = colony.json(*named("q-1", "--record"))
    sent = json.loads(asked.sent[-1])["messages"]
    arguments = sent[2]["tool_calls"][0]["function"]["arguments"]

    store = lines[0].partition(" ")[0]
    assert lines == [
        f"{store} 1  iter 0  user  11 bytes",
        "user: What is it?",
        lines[2],
        f"→ tool-a c-1  {arguments}",
        "assistant: I look.",
        f"{store} 3  iter 0  tool  c-1  {len(sent[3]['content'])} bytes",
        f"← c-1  {sent[3]['content']}",
        "output at /sink  answer",
        "It is blue.",
    ]
    assert lines[2].startswith(f"{store} 2  iter 0  assistant  claimed  ")
    assert {row["row"]["role"] for row in rows} == {"user", "assistant", "tool"}
    assert colony.json(*named("q-1", "--record", "--iter", "0")) == rows


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ("nobody",),
            "thread_not_found: nothing is kept of the question nobody; `colony traces` lists",
        ),
        (("nobody", "--record"), "thread_not_found: nothing is kept of the question nobody"),
        (
            ("q-1", "--record", "--iter", "9"),
            "thread_not_found: no row of round 9 is kept of the question q-1",
        ),
        (("q-1", "--iter", "9"), "/llm in iteration 9 sent nothing that is kept, but /llm in 0, 1"),
        (("q-1", "--raw", "--format", "json"), "--raw is bytes"),
        (("q-1", "--record", "--cell", "/llm"), "go with --view"),
        (("q-1", "--record", "--view"), "give one"),
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

    _, rounds, settings, tools, *lines = colony(*named(trace_id)).stdout.splitlines()
    assert rounds == "  1 round: 0"
    assert settings.startswith("model=m-1 max_tokens=4096")
    assert tools == "tools: look"
    assert lines[:3] == ["", "system", "You are terse."]
    assert json.dumps(block, ensure_ascii=False) in lines
    assert [line for line in lines if line.startswith("[")] == [
        f"[{n}]  {message['role']}  {sum(map(len, said(message['content'])))} bytes"
        for n, message in enumerate(server.requests[0].messages)
    ]


@dataclass
class Folded:
    """A question of four rounds that were folded once, and another that its model refused once."""

    model: Model
    refused: Model


@pytest.fixture
def folded(redis_url: str, tmp_path: Path) -> Folded:
    async def ask(model: Model, turn_id: str, **handed: Any) -> None:
        spec = folding_tree(tmp_path / turn_id, model, **handed)
        async with Harness(redis_url, spec) as harness:
            await harness.ask("/capture", "How often?", context={"turn_id": turn_id})  # type: ignore[arg-type]
            await harness.finish()

    made = Folded(Model(), Model(refuses=lambda request: len(request.messages) > 1 + 7))
    with serving(made.model):
        asyncio.run(ask(made.model, "q-1"))
    with serving(made.refused):
        asyncio.run(ask(made.refused, "q-2", tokens=1_000_000))
    return made


def test_a_folded_thread_is_shown_as_it_was_sent(colony: Any, folded: Folded) -> None:
    sent = [request.content for request in folded.model.asked]
    head, beside, *_ = colony(*named("q-1", "--iter", "3")).stdout.splitlines()

    assert colony(*named("q-1", "--raw")).stdout_bytes == sent[4]
    assert colony(*named("q-1", "--raw", "--iter", "3")).stdout_bytes == sent[3]
    assert head.startswith("/llm  iter 3  ")
    assert beside.startswith("  beside: /compact/condense  iter 3  ")


def test_what_a_fold_was_asked_is_shown(colony: Any, folded: Folded) -> None:
    told = colony.json(*named("q-1", "--cell", "/compact/condense"))

    assert told["body"]["messages"][-1]["content"] == folded.model.folds[0]
    assert (told["request"]["cell"], told["request"]["iter"]) == ("/compact/condense", 3)


def test_a_summary_is_shown_with_the_rounds_it_stands_for(colony: Any, folded: Folded) -> None:
    lines = colony(*named("q-1", "--record")).stdout.splitlines()
    rows = colony.json(*named("q-1", "--record"))
    (number,) = [n for n, line in enumerate(lines) if "  summary  " in line]
    told = summary(1).rstrip().splitlines()

    assert len(rows) == 10
    assert f"  iter 0…2  summary  {len(summary(1))} bytes" in lines[number]
    assert lines[number + 1 : number + 1 + len(told)] == ["assistant: " + told[0], *told[1:]]
    assert lines[-2:] == ["output at /sink  answer", "done"]
    roles = [row["row"]["role"] for row in colony.json(*named("q-1", "--record", "--iter", "2"))]
    assert roles == ["assistant", "tool", "summary"]


def test_a_window_that_was_refused_stands_beside_the_folded_one(
    colony: Any, folded: Folded
) -> None:
    before, after = [request.content for request in folded.refused.asked][-2:]
    told = colony.json(*named("q-2"))

    assert colony(*named("q-2", "--raw")).stdout_bytes == after
    assert (told["request"]["iter"], told["request"]["size"]) == (4, len(after))
    assert [(other["cell"], other["iter"], other["size"]) for other in told["beside"]] == [
        ("/llm", 4, len(before))
    ]


def test_what_a_terminal_would_obey_is_shown_and_not_sent_to_it(
    colony: Any, redis_url: str
) -> None:
    said = "\x1b]0;title\x07 red \x1b[31m\r\tend\x9b"

    async def ask() -> str:
        llm = CellSpec(
            path="/llm", cell=CellSettings(type="llm"), params={"provider": "extractive"}
        )
        out = CellSpec(path="/out", cell=CellSettings(type="sink"))
        spec = TopologySpec(cells=(llm, out), edges=(EdgeSpec(source="/llm", target="/out"),))
        async with Harness(redis_url, spec) as harness:
            trace_id = await harness.ask("/llm", said)
            await harness.finish()
            return trace_id

    trace_id = asyncio.run(ask())

    lines = colony(*named(trace_id)).stdout_bytes.decode().split("\n")
    assert "\\x1b]0;title\\x07 red \\x1b[31m\\x0d\tend\\x9b" in lines
    body = json.loads(colony(*named(trace_id, "--raw")).stdout_bytes)
    assert body["messages"][-1]["content"] == said


def test_a_summary_is_told_from_what_the_model_said(colony: Any, folded: Folded) -> None:
    lines = colony(*named("q-1")).stdout.splitlines()

    assert "  5 rounds: 0…4 (--iter N); /compact/condense in 3 (--cell PATH)" in lines
    marked = [line for line in lines if "summary of rounds" in line]
    assert marked == [f"[2]  assistant  summary of rounds 0…2  {len(summary(1))} bytes"]


def test_a_summary_of_one_round_is_told_so() -> None:
    body = json.dumps({"messages": [{"role": "assistant", "content": "GOAL"}]}).encode()

    assert "  summary of round 0  " in "\n".join(view(body, {"GOAL": 0}))


def test_a_long_text_of_the_record_is_shortened_with_its_size(colony: Any, redis_url: str) -> None:
    async def ask(base_url: str) -> str:
        async with Harness(redis_url, tool_loop(base_url)) as harness:
            trace_id = await harness.ask("/capture", "ä\x1b" * 9_000)
            await harness.finish()
            return trace_id

    with ModelServer([{"text": "It is \x1b[31mred."}]) as server:
        trace_id = asyncio.run(ask(server.base_url))
    head, question, *_, answer = colony(*named(trace_id, "--record")).stdout.splitlines()

    assert head.endswith("  user  27000 bytes")
    assert question.startswith("user: ä\\x1bä")
    assert question.endswith("… [27000 bytes]")
    assert answer == "It is \\x1b[31mred."
    [row, *_] = colony.json(*named(trace_id, "--record"))
    assert json.loads(row["row"]["turn"])["text"] == "ä\x1b" * 9_000


def test_a_question_of_a_conversation_is_shown_with_its_answer(colony: Any, redis_url: str) -> None:
    spec = with_params(
        load(shipped("research"), environment={}).publishable(),
        "/planner",
        {"provider": "scripted", "script": [{"text": "It is blue."}]},
    )

    async def ask() -> list[str]:
        async with Harness(redis_url, spec, root=shipped("research")) as harness:
            asked = []
            for text in ("What is it?", "And now?"):
                context: Any = {"session_id": "me"}
                asked.append(await harness.ask("/prep", text, context=context))
                await harness.finish()
            return asked

    first, second = asyncio.run(ask())

    for question in (first, second):
        *_, title, said = colony(*named(question, "--record")).stdout.splitlines()
        assert title.startswith("/memory:conversation ")
        assert title.endswith("  answer")
        assert said == "It is blue."
        *_, row = colony.json(*named(question, "--record"))
        assert row["table"] == "conversation"
        assert json.loads(row["row"]["answer"])[0]["text"] == "It is blue."
    lines = colony(*named(second, "--record")).stdout.splitlines()
    assert "  user  behind 2 earlier entries  " in lines[0]
    assert lines[1:4] == ["user: What is it?", "assistant: It is blue.", "user: And now?"]


def test_a_question_that_waits_for_its_turn_says_for_whom(colony: Any, redis_url: str) -> None:
    spec = load(shipped("research"), environment={}).publishable()

    async def ask() -> tuple[str, str]:
        async with Harness(redis_url, spec, root=shipped("research")) as harness:
            context: Any = {"session_id": "me"}
            asked = [await harness.ask("/prep", text, context=context) for text in ("a?", "b?")]
            while moving := [d for d in await harness.pending() if d.head.trace_id == asked[1]]:
                await harness.step(moving[0])
            return asked[0], asked[1]

    first, second = asyncio.run(ask())

    told = colony(*named(second), status=2).stderr
    assert told.rstrip().endswith(f"it waits for {first}, an older trace of its session, to end")
    told = colony(*named(second, "--record"), status=2).stderr
    assert told.rstrip().endswith(f"question {second}: it waits for {first}")


def test_an_output_that_is_no_answer_says_why() -> None:
    output: Any = {
        "path": "/sink",
        "hop": {"error_code": "iteration_limit"},
        "body": {"messages": [Entry.say("assistant", "I stop here.").to_json()]},
    }

    lines = [click.unstyle(line) for line in answer_lines([], [output])]

    assert lines == ["output at /sink  answer  iteration_limit", "I stop here."]
    assert [click.unstyle(line) for line in answer_lines([], [])] == ["no answer is found"]


def test_a_row_of_another_tree_is_shown_as_it_is() -> None:
    values: Any = {"iter": 3, "role": "party", "fired": 7, "turn": "no JSON", "call_id": "c"}
    called: Any = {**values, "turn": json.dumps({"text": "x", "type": "tool_call", "id": "c"})}
    nothing: Any = {**values, "turn": None}

    shown = [
        [click.unstyle(line) for line in row_lines(RecordedRow("/s", "t", 1, row))]
        for row in (values, called, nothing)
    ]

    assert shown[0] == ["/s:t 1  iter 3  party  c  fired 7  7 bytes", "no JSON"]
    assert shown[1][1] == "→  c  x"
    assert shown[2][1] == "null"
