"""The compaction colony as it is tried here: with a model server that counts its rounds."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colony.testing.model_server import ModelRequest, ModelServer
from colony.topology.load import load
from colony.topology.model import TopologySpec
from colony.trees import shipped
from tests.colonies.conftest import with_params

HEADINGS = ["GOAL", "PROGRESS", "KEY DECISIONS", "NEXT STEPS"]
CONTEXT_LENGTH = {
    "status": 400,
    "body": {"error": {"code": "context_length_exceeded", "message": "too long"}},
}
TWO = {"x": 1, "y": 1}
# What a tree does without once it has the lane.
BROUGHT = {
    ("./planner", "./dispatch"),
    ("./planner", "./drain"),
    ("./collector", "./planner"),
    ("./collector", "./drain"),
}
JOINS = ("collect", "settle")


def summary(number: int) -> str:
    return "\n".join(f"{heading}\n{number}\n" for heading in HEADINGS)


def of_ten(request: ModelRequest) -> dict[str, int]:
    """What every call is said to have cost."""
    return {"prompt_tokens": 10, "completion_tokens": 5}


def of_its_size(request: ModelRequest) -> dict[str, int]:
    """What a call costs by what it was sent."""
    return {"prompt_tokens": 10 * len(request.messages), "completion_tokens": 5}


@dataclass
class Model:
    """Asks for `rounds` rounds and answers then; what it was sent, and what its folds were."""

    rounds: int = 4
    calls: int = 1
    fold: Mapping[str, Any] | None = None
    usage: Callable[[ModelRequest], dict[str, int] | None] = of_ten
    refuses: Callable[[ModelRequest], bool] = lambda request: False
    asked: list[ModelRequest] = field(default_factory=list)
    folds: list[str] = field(default_factory=list)
    base_url: str = ""

    def __call__(self, request: ModelRequest) -> Mapping[str, Any]:
        if str(request.messages[-1]["content"]).startswith("The user asked: "):
            return self._fold(request)
        self.asked.append(request)
        if self.refuses(request):
            return CONTEXT_LENGTH
        known = [c["id"] for m in request.messages for c in m.get("tool_calls") or ()]
        number = max([int(call.split("-")[1]) + 1 for call in known], default=0)
        if number >= self.rounds:
            return {"text": "done", "usage": self.usage(request)}
        calls = [
            {"id": f"call-{number}" + (f"-{n}" if n else ""), "name": "calc", "arguments": TWO}
            for n in range(self.calls)
        ]
        return {"tool_calls": calls, "usage": self.usage(request)}

    def _fold(self, request: ModelRequest) -> Mapping[str, Any]:
        assert "tools" not in request.body
        self.folds.append(request.messages[-1]["content"])
        told = request.messages[0]["content"]
        assert [line for line in told.splitlines() if line in HEADINGS] == HEADINGS
        return self.fold or {"text": summary(len(self.folds))}


@contextmanager
def serving(model: Model) -> Iterator[ModelServer]:
    with ModelServer(model) as server:
        model.base_url = server.base_url
        yield server
    assert server.refused == []


def folding_tree(
    folder: Path, model: Model, *, join: str = "collect", **handed: Any
) -> TopologySpec:
    """config/compaction with `model` behind both of its llm cells; `handed` is for its template."""
    shutil.copytree(shipped("compaction"), folder, dirs_exist_ok=True)
    hive = folder / "main" / "compact" / "config.json"
    written = json.loads(hive.read_text())
    written["params"]["with"] |= handed
    hive.write_text(json.dumps(written))
    loaded = load(folder, environment={})
    assert loaded.findings == ()
    spec = loaded.publishable()
    asks = {"provider": "openai", "model": "m", "base_url": model.base_url, "attempts": 1}
    for path in ("/llm", "/compact/condense"):
        spec = with_params(spec, path, {**asks, "state_scope": "trace"})
    return settling(spec) if join == "settle" else spec


def settling(spec: TopologySpec) -> TopologySpec:
    """The tree with the join of one operation, which the row of the question may complete."""
    handlers = {
        "/capture": "workers.toolloop.prep:prep_settling",
        "/tool-loop/collector": "workers.toolloop.settle:settle",
        "/closer": "workers.toolloop.close:close_settling",
    }
    for path, handler in handlers.items():
        (params,) = [cell.params for cell in spec.cells if cell.path == path]
        kept = {name: params[name] for name in params.keys() & {"persona"}}
        spec = with_params(spec, path, {**kept, "handler": handler})
    edges = [
        edge.model_copy(update={"target": "/tool-loop/collector"})
        if (edge.source, edge.target) == ("/store", "/park")
        else edge
        for edge in spec.edges
    ]
    return spec.model_copy(update={"edges": tuple(edges)})


def laid_into(folder: Path, tree: str, handed: Mapping[str, Any]) -> TopologySpec:
    """A shipped tree with the lane in it, in place of the edges that the lane brings."""
    shutil.copytree(shipped(tree), folder, dirs_exist_ok=True)
    hive = folder / "main" / "config.json"
    written = json.loads(hive.read_text())
    graph = written["params"]["graph"]
    graph["edges"] = [e for e in graph["edges"] if (e["from"], e["to"]) not in BROUGHT]
    hive.write_text(json.dumps(written))
    (folder / "main" / "compact").mkdir()
    laid = {"cell": {"type": "hive"}, "params": {"template": "compaction", "with": handed}}
    (folder / "main" / "compact" / "config.json").write_text(json.dumps(laid))
    loaded = load(folder, environment={})
    assert loaded.findings == ()
    return loaded.publishable()
