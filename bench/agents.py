"""Agents: the colony with an agent that benchmarks drive, its model scripted and its tools idle."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from bench.contenders import NAME, tree_of
from bench.handlers import JOURNAL
from colony.engine import Engine
from colony.publication import Publication
from colony.testing.fleet import Fleet
from colony.testing.nursery import Nursery
from colony.topology.model import TopologySpec

AGENT: Final = "assistant"
HERE: Final = Path(__file__).parent

Answer = Mapping[str, JsonValue]


def agent_tree(script: Sequence[Answer]) -> TopologySpec:
    """An agent that looks and changes as a script says; before it changes anything it asks."""
    spec = tree_of("agent")
    cells = (
        cell.model_copy(update={"params": {**cell.params, "script": [*map(dict, script)]}})
        if cell.path == f"/{AGENT}/model"
        else cell
        for cell in spec.cells
    )
    return spec.model_copy(update={"cells": tuple(cells)})


def calling(number: int, tool: str, *, calls: int, text: str = "") -> Answer:
    """One answer of a script with some calls, none of which was made before."""
    made: list[JsonValue] = [
        {"id": f"{number}-{n}", "name": tool, "arguments": {"n": f"{number}-{n}"}}
        for n in range(calls)
    ]
    return {"tool_calls": made, **({"text": text} if text else {})}


@contextmanager
def at_work(url: str, *, workers: int, journal: Path | None = None) -> Iterator[Fleet]:
    """A router and workers of the benchmark colony, each a process as the command line runs it."""
    environment = {"COLONY_LOG_LEVEL": "warning", "PYTHONPATH": str(HERE.parent)}
    if journal is not None:
        environment[JOURNAL] = str(journal)
    with Nursery() as nursery, Fleet(nursery, url, NAME, environment=environment) as fleet:
        fleet.router()
        for _ in range(workers):
            fleet.worker("--root", str(HERE / "trees" / "agent"))
        yield fleet


@asynccontextmanager
async def published(url: str, spec: TopologySpec) -> AsyncIterator[Engine]:
    """An engine beside the colony, whose newest topology is this one."""
    async with await Engine.connect(url, colony=NAME) as engine:
        await Publication(engine.access.link, engine.access.keys).publish(spec)
        yield engine
