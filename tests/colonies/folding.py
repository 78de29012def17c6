"""The compaction colony as it is tried here: with a model server that counts its rounds."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colony.testing.harness import Harness
from colony.testing.model_server import ModelRequest, ModelServer
from colony.topology.load import load
from colony.topology.model import CellSpec, TopologySpec
from colony.trees import shipped
from tests.colonies.cells import with_params

if TYPE_CHECKING:
    from tests.colonies.conftest import Colony

TTL = 400
ROLES = ("user", "assistant", "tool", "summary")
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
COLLECTOR = "/tool-loop/collector"


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
    folder: Path,
    model: Model,
    *,
    join: str = "collect",
    caps: Mapping[str, int] | None = None,
    **handed: Any,
) -> TopologySpec:
    """config/compaction with `model` behind both of its llm cells; `caps` are those of the view,
    `handed` is for its template."""
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
    spec = settling(spec) if join == "settle" else spec
    (collector,) = [cell.params for cell in spec.cells if cell.path == COLLECTOR]
    return with_params(spec, COLLECTOR, {**collector, **caps}) if caps else spec


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
    folds = {"fold_provider": "${COLONY_PROVIDER:-openai}", "fold_model": "${COLONY_MODEL:-m}"}
    params = {"template": "compaction", "with": {**folds, **handed}}
    laid = {"cell": {"type": "hive"}, "params": params}
    (folder / "main" / "compact" / "config.json").write_text(json.dumps(laid))
    loaded = load(folder, environment={})
    assert loaded.findings == ()
    return loaded.publishable()


async def thread(colony: "Colony", trace: str) -> list[dict[str, Any]]:
    rows = await colony.rows("thread", store="/store", trace_id=trace)
    return sorted(rows, key=lambda row: (row["iter"], ROLES.index(row["role"]), row["call_id"]))


async def spent(colony: "Colony", trace: str) -> int:
    """Hops on the chain that came out at the sink, were nothing restored."""
    hops = await colony.harness.hops(trace)
    (answer,) = [hop for hop in hops if hop.head.target == "/sink"]
    parents = {hop.head.id: hop.head.parent_message_id for hop in hops}
    count, at = 0, answer.head.id
    while at in parents:
        count, at = count + 1, str(parents[at])
    return count


async def refused(colony: "Colony", trace: str) -> dict[str, Any]:
    """The row of the one error that was kept."""
    (row,) = await colony.rows("errors", store="/store", trace_id=trace)
    return row


async def waiting_at(harness: Harness, path: str) -> list[Any]:
    return [found for found in await harness.pending() if harness.owner(found) == path]


async def republished(harness: Harness, cell: CellSpec, params: dict[str, Any]) -> None:
    """The tree goes on with other params of a cell."""
    changed = with_params(harness.spec, cell.path, params)
    await harness.publication.publish(changed)
    await harness.publication.refresh()
