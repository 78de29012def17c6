"""The registry: which cells a topology has, how edges join them, which processes host them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from colony.paths import ROOT, within
from colony.slots import Holder
from colony.topology.model import CellSpec, Edge, Topology


@dataclass(frozen=True, slots=True)
class Registered:
    """A cell, the workers that host it, and why others could not start it.

    A cell that no edge touches is not active: it takes no envelopes and needs no host.
    """

    spec: CellSpec
    active: bool
    hosts: tuple[str, ...]
    failures: Mapping[str, str]

    @property
    def served(self) -> bool:
        """Whether what is sent to it will be handled."""
        return bool(self.hosts) or not self.active

    def to_json(self) -> dict[str, JsonValue]:
        """The cell as a JSON object, without its params."""
        contract = self.spec.contract
        tool = contract.tool if contract else None
        return {
            "path": self.spec.path,
            "type": self.spec.cell.type,
            "active": self.active,
            "hosts": [*self.hosts],
            "failures": dict(self.failures),
            "description": self.spec.description,
            "tool": tool.name if tool else None,
        }


def registry(topology: Topology, workers: Iterable[Holder]) -> list[Registered]:
    """Every cell of a topology by path; workers tell what they host when they renew their lease."""
    told = [(f"{worker.role}-{worker.slot}", worker.about) for worker in workers]
    return [
        Registered(
            spec=topology.cells[path],
            active=path in topology.active,
            hosts=tuple(name for name, about in told if path in _cells(about)),
            failures={
                name: str(why)
                for name, about in told
                if (why := _failed(about).get(path)) is not None
            },
        )
        for path in sorted(topology.cells)
    ]


def graph(topology: Topology, scope: str = ROOT) -> dict[str, JsonValue]:
    """The nodes at or below `scope`, and the edges with both ends there."""
    kinds = {path: "hive" for path in topology.hives}
    kinds |= {path: cell.cell.type for path, cell in topology.cells.items()}
    return {
        "scope": scope,
        "graph_version": topology.version,
        "nodes": [
            {"path": path, "cell_type": kinds[path]}
            for path in sorted(kinds)
            if within(path, scope)
        ],
        "edges": [
            _edge(edge)
            for edges in topology.edges.values()
            for edge in edges
            if within(edge.spec.source, scope) and within(edge.spec.target, scope)
        ],
    }


def _edge(edge: Edge) -> dict[str, JsonValue]:
    written = edge.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"id": edge.digest, **written}


def _cells(about: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    cells = about.get("cells")
    return cells if isinstance(cells, list) else []


def _failed(about: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    failed = about.get("failed")
    return failed if isinstance(failed, dict) else {}
