"""Window: bytes that a model is sent, with the rules that keep its window small and without them.

`python -m bench.window` asks the shipped `research` tree a question whose first of five rounds
gives five megabytes, then a hundred questions of one session. A model server counts what comes, and
is as strict as providers are. The command ends with an error where the rules do not help.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from pydantic import JsonValue

from bench.measure import server
from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.testing.harness import Harness
from colony.testing.model_server import Answer, ModelServer
from colony.topology.load import load
from colony.topology.model import CellSettings, CellSpec, Contract, ToolDeclaration, TopologySpec
from colony.trees import shipped

TREE = "research"
PREP, READER, COLLECTOR = "/prep", "/reader", "/collector"

ROUNDS, LARGE, SMALL = 5, 5_000_000, 200
QUESTIONS, ANSWER = 100, 2_000

_KEYS = ("COLONY_PROVIDER", "COLONY_MODEL", "COLONY_BASE_URL")
_UNBOUNDED = 2**40
# What decides how much a model is shown, such that it is shown everything.
_NO_CAPS: Mapping[str, Mapping[str, JsonValue]] = {
    COLLECTOR: {
        "max_result_bytes": _UNBOUNDED,
        "max_round_bytes": _UNBOUNDED,
        "max_view_bytes": _UNBOUNDED,
        "max_rounds": _UNBOUNDED,
    },
    PREP: {"max_questions": 1_000, "max_view_bytes": 1_000_000},
}
_PARAMETERS: Mapping[str, JsonValue] = {
    "type": "object",
    "properties": {"bytes": {"type": "integer"}},
}
_TOOL = ToolDeclaration(
    name="web_fetch", description="Reads a document.", parameters={**_PARAMETERS}, read_only=True
)


@dataclass(frozen=True)
class Sent:
    """The bytes of each request that a model was sent, in order."""

    sizes: Sequence[int]

    @property
    def total(self) -> int:
        """All of them together."""
        return sum(self.sizes)

    @property
    def largest(self) -> int:
        """Those of the largest request."""
        return max(self.sizes)


def document(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A document for each call, as long as the call says."""
    return [
        Emission.of(Entry.result(call.id or "", "x" * _wanted(call)), operation="web_fetch")
        for call in envelope.body.each("tool_call")
    ]


def with_rules() -> TopologySpec:
    """The tree as it ships, with a reader that gives documents of any length."""
    return _tree(_TOOL, {})


def without_rules() -> TopologySpec:
    """The same tree without a cap. Its reader is declared as no tool, whose results are cut."""
    return _tree(None, _NO_CAPS)


def long_document(size: int) -> Sequence[Answer]:
    """A model that reads so much in the first of its rounds, and little in the others."""
    wanted = [size, *([SMALL] * (ROUNDS - 1))]
    return [*(_reading(number, wish) for number, wish in enumerate(wanted)), {"text": "done"}]


def conversation(questions: int) -> Sequence[Answer]:
    """A model that answers so many questions, without a tool."""
    return [{"text": f"Answer {number}: ".ljust(ANSWER, "y")} for number in range(questions)]


async def sent(url: str, spec: TopologySpec, script: Sequence[Answer], *, questions: int) -> Sent:
    """What the model is sent for so many questions of one session, one after the other.

    Raises RuntimeError where one of them is not answered.
    """
    with ModelServer(script) as model:
        environment = dict(zip(_KEYS, ("openai", "m", model.base_url), strict=True))
        name, root = f"window-{uuid4().hex}", shipped(TREE)
        async with Harness(url, spec, name=name, environment=environment, root=root) as harness:
            for number in range(questions):
                await _answered(harness, f"Question {number}?")
    return Sent([int(request.headers["content-length"]) for request in model.requests])


async def _answered(harness: Harness, question: str) -> None:
    trace_id = await harness.ask(PREP, question, context={"session_id": "s"})
    await harness.finish()
    outputs = await harness.outputs(trace_id)
    letters = await harness.letters()
    if len(outputs) != 1 or letters:
        raise RuntimeError(f"{question} was not answered: {letters}")


def _tree(
    tool: ToolDeclaration | None, params: Mapping[str, Mapping[str, JsonValue]]
) -> TopologySpec:
    environment = dict(zip(_KEYS, ("openai", "m", "http://127.0.0.1"), strict=True))
    spec = load(shipped(TREE), environment=environment).publishable()
    cells = (
        _reader(cell, tool) if cell.path == READER else _with(cell, params.get(cell.path, {}))
        for cell in spec.cells
    )
    return spec.model_copy(update={"cells": tuple(cells)})


def _reader(cell: CellSpec, tool: ToolDeclaration | None) -> CellSpec:
    contract = Contract(version="1", settings={}, consumes={}, tool=tool)
    return cell.model_copy(
        update={
            "cell": CellSettings(type="code"),
            "params": {"handler": "bench.window:document"},
            "contract": contract if tool else None,
        }
    )


def _with(cell: CellSpec, params: Mapping[str, JsonValue]) -> CellSpec:
    return cell.model_copy(update={"params": {**cell.params, **params}})


def _wanted(call: Entry) -> int:
    return int(json.loads(call.text or "{}")["bytes"])


def _reading(number: int, size: int) -> Answer:
    call: dict[str, JsonValue] = {
        "id": f"read-{number}",
        "name": "web_fetch",
        "arguments": {"bytes": size},
    }
    return {"tool_calls": [call]}


def _row(name: str, found: Sent) -> str:
    return f"| {name} | {len(found.sizes)} | {found.largest:,} | {found.total:,} |"


async def compare(url: str) -> Mapping[str, tuple[Sent, Sent]]:
    """Both measurements, with the rules and without."""
    found: dict[str, tuple[Sent, Sent]] = {}
    for name, script, questions in (
        (f"{LARGE:,} bytes over {ROUNDS} rounds", long_document(LARGE), 1),
        (f"{QUESTIONS} questions", conversation(QUESTIONS), QUESTIONS),
    ):
        found[name] = (
            await sent(url, with_rules(), script, questions=questions),
            await sent(url, without_rules(), script, questions=questions),
        )
    return found


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.window", description=__doc__)
    parser.parse_args()
    with server() as redis:
        found = asyncio.run(compare(redis.url))
    print("| | requests | largest, bytes | all, bytes |\n|---|---|---|---|")
    for name, (bounded, unbounded) in found.items():
        print(_row(f"{name}, with the rules", bounded))
        print(_row(f"{name}, without", unbounded))
    if not all(bounded.total < unbounded.total for bounded, unbounded in found.values()):
        sys.exit("the rules save nothing")


if __name__ == "__main__":
    main()
