"""Every shipped colony as it is run here: stepped, with a model of the test's choice."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colony.operations import Select
from colony.schema import Schema
from colony.store.tables import StoreTables
from colony.testing.harness import Harness, first_come
from colony.topology.load import load
from colony.topology.model import TopologySpec
from colony.trees import shipped
from tests.colonies.cells import with_params
from tests.colonies.folding import TTL, Model, folding_tree, serving
from workers.store import Store

Rows = list[dict[str, Any]]


@dataclass
class Colony:
    """A shipped tree that runs, one step at a time."""

    harness: Harness

    async def answer(self, trace_id: str, choose: Any = first_come) -> str:
        """Run until nothing moves any more; the text of the one output of the trace."""
        await self.harness.finish(choose)
        (output,) = await self.harness.outputs(trace_id)
        body: Any = output["body"]
        return str(body["messages"][-1]["text"])

    async def rows(self, table: str, *, store: str = "/memory", trace_id: str) -> Rows:
        """The rows of a table without the columns that name the question."""
        cell = next(cell for cell in self.harness.spec.cells if cell.path == store)
        params = Store.Params.model_validate(cell.params)
        columns = tuple(c for c in params.tables[table].columns if c not in ("id", "turn_id"))
        tables = StoreTables(
            self.harness.link,
            self.harness.keys,
            path=store,
            schema=Schema(tables=params.tables),
            trace_id=trace_id,
            envelope_id="test",
        )
        reply = await tables.execute(Select(table=table, columns=columns))
        assert reply.error_code is None, reply.detail
        return [dict(row) for row in reply.rows or ()]

    async def fires(self, trace_id: str) -> int:
        """How often a round went back to the model."""
        hops = await self.harness.hops(trace_id)
        return sum(hop.head.hop.get("route") == "fire" for hop in hops)

    async def assert_clean(self, trace_id: str) -> None:
        """The trace ended well, and nothing was lost on the way."""
        trace = await self.harness.trace(trace_id)
        assert (trace.state, trace.cause, trace.dead) == ("ended", "completed", 0)
        assert await self.harness.letters() == []


def restoring(spec: TopologySpec) -> TopologySpec:
    """The tree with a loopback edge that restores the budget."""
    edges = tuple(
        edge.model_copy(update={"modifier": edge.modifier.model_copy(update={"restore_ttl": True})})
        if edge.modifier and "iter" in edge.modifier.set_context and edge.source != "/capture"
        else edge
        for edge in spec.edges
    )
    assert edges != spec.edges
    return spec.model_copy(update={"edges": edges})


Start = Callable[..., Any]


@pytest.fixture
async def start(redis_url: str) -> AsyncIterator[Start]:
    """Starts a shipped tree, after stopping the one before. `script` is what its model says, `more`
    are further params by the path of their cell."""
    async with AsyncExitStack() as stack:

        async def start(
            name: str,
            *,
            script: Sequence[Mapping[str, Any]] = (),
            model: str = "/planner",
            environment: Mapping[str, str] | None = None,
            restore: bool = False,
            more: Mapping[str, Mapping[str, Any]] | None = None,
        ) -> Colony:
            await stack.aclose()
            root = shipped(name)
            spec = load(root, environment=environment or {}).publishable()
            if script:
                params = {"provider": "scripted", "script": [dict(step) for step in script]}
                spec = with_params(spec, model, params)
            for path, added in (more or {}).items():
                (params,) = [cell.params for cell in spec.cells if cell.path == path]
                spec = with_params(spec, path, {**params, **added})
            if restore:
                spec = restoring(spec)
            harness = Harness(redis_url, spec, environment=environment, root=root)
            await stack.enter_async_context(harness)
            return Colony(harness)

        yield start


@pytest.fixture
async def begin(redis_url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts config/compaction with a model, and asks it; the colony and the trace."""
    async with AsyncExitStack() as stack:

        async def begin(model: Model, *, ttl: int = TTL, **options: Any) -> tuple[Colony, str]:
            stack.enter_context(serving(model))
            spec = folding_tree(tmp_path / "tree", model, **options)
            harness = await stack.enter_async_context(Harness(redis_url, spec))
            trace = await harness.ask("/capture", "How often?", ttl=ttl, context={"turn_id": "t-7"})
            return Colony(harness), trace

        yield begin
