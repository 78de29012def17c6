"""A fold before the Messages API, where roles alternate and a model wants its thoughts back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colony.testing.harness import Harness
from colony.testing.messages_server import MessagesRequest, MessagesServer
from tests.colonies.cells import with_params
from tests.colonies.conftest import Colony
from tests.colonies.folding import TWO, Model, folding_tree, summary


class Thinking:
    """Thinks, says something and calls its tool, for eight rounds; folds what it is given."""

    def __init__(self) -> None:
        self.asked: list[MessagesRequest] = []
        self.folds: list[str] = []

    def __call__(self, request: MessagesRequest) -> Mapping[str, Any]:
        told = str(blocks(request)[-1].get("text"))
        if told.startswith("The user asked: "):
            self.folds.append(told)
            return {"content": [thought("of the fold"), said(summary(len(self.folds)))]}
        number = len(self.asked)
        self.asked.append(request)
        if number == 8:
            return {"content": "done"}
        used = {"type": "tool_use", "id": f"call-{number}", "name": "calc", "input": TWO}
        return {"content": [thought(f"{number}"), said(f"I look {number}"), used]}


def blocks(request: MessagesRequest) -> list[dict[str, Any]]:
    """What all messages of a request say."""
    contents: list[Any] = [message["content"] for message in request.messages]
    return [block for content in contents for block in content]


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": f"s-{text}"}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


async def test_a_summary_is_said_in_the_turn_of_the_round_behind_it(
    redis_url: str, tmp_path: Path
) -> None:
    model, spec = Thinking(), folding_tree(tmp_path, Model())
    with MessagesServer(model) as server:
        place = {"provider": "anthropic", "model": "m", "base_url": server.base_url}
        for path in ("/llm", "/compact/condense"):
            spec = with_params(spec, path, {**place, "attempts": 1, "state_scope": "trace"})
        async with Harness(redis_url, spec) as harness:
            colony = Colony(harness)
            trace = await harness.ask("/capture", "How often?")
            assert await colony.answer(trace) == "done"
            await colony.assert_clean(trace)

    assert server.refused == []
    assert len(model.folds) == 2
    assert summary(1) in model.folds[1]
    assert not any("signature" in text or "thinking" in text for text in model.folds)
    question, round_seven, results = model.asked[8].messages
    assert question == {"role": "user", "content": [said("How often?")]}
    assert round_seven == {
        "role": "assistant",
        "content": [
            thought("7"),
            said(summary(2)),
            said("I look 7"),
            {"type": "tool_use", "id": "call-7", "name": "calc", "input": TWO},
        ],
    }
    assert [block["tool_use_id"] for block in results["content"]] == ["call-7"]
