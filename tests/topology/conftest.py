"""A directory tree to write cells into, and a few cell types to write them for."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ConfigDict, JsonValue

from colony import cell
from colony.errors import TopologyError
from colony.topology.findings import Finding
from colony.topology.load import Loaded, load


class Free(cell.Cell):
    class Params(cell.Cell.Params):
        model_config = ConfigDict(frozen=True, extra="allow")


class Echo(cell.Cell):
    emits = frozenset({"length"})

    class Params(cell.Cell.Params):
        prefix: str
        limit: int = 1


TYPES: Mapping[str, type[cell.Cell]] = {
    "code": Free,
    "echo": Echo,
    "llm": Free,
    "sink": Free,
    "store": Free,
}


class Tree:
    """A tree on disk that is written piece by piece."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, content: object) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))

    def hive(self, folder: str, *edges: object, **params: object) -> None:
        slots = {"cell": {"type": "hive"}, "params": {"graph": {"edges": edges}, **params}}
        self.put(f"{folder}/config.json", slots)

    def cell(self, folder: str, kind: str = "code", **slots: object) -> None:
        self.put(f"{folder}/config.json", {"cell": {"type": kind}, **slots})

    def load(
        self, environment: Mapping[str, str] | None = None, *, sinks: tuple[str, ...] = ()
    ) -> Loaded:
        shipped = (self.root.parent / "shipped",)
        return load(self.root, environment=environment or {}, sinks=sinks, templates=shipped)

    def findings(self, **environment: str) -> list[Finding]:
        return list(self.load(environment).findings)


def contract(**slots: object) -> dict[str, object]:
    """A complete contract with these slots."""
    return {"version": "1", "settings": {}, "consumes": {}, **slots}


def emitting(**hop: object) -> dict[str, object]:
    """A contract that declares these hop keys: a list of values, or a field of its own."""
    fields = {
        key: {"type": "string", "values": spec} if isinstance(spec, list) else spec
        for key, spec in hop.items()
    }
    return contract(emits={"hop": fields})


def edge(
    source: str, target: str, condition: str | None = None, **modifier: JsonValue
) -> dict[str, object]:
    """An edge as it is written in a tree."""
    written: dict[str, object] = {"from": source, "to": target}
    if condition is not None:
        written["condition"] = condition
    if modifier:
        written["modifier"] = modifier
    return written


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """An empty tree; the cell types it may name are those of TYPES."""

    def cell_type(name: str) -> type[cell.Cell]:
        if name not in TYPES:
            raise TopologyError(detail=f"no cell type {name!r} is installed")
        return TYPES[name]

    monkeypatch.setattr(cell, "cell_type", cell_type)
    root = tmp_path / "colony"
    root.mkdir()
    return Tree(root)
