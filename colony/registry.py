"""The registry: which cells a topology has, and which processes host them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from colony.slots import Holder
from colony.topology.model import CellSpec, Topology


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
    """Every cell of a topology, by path. Workers tell what they host when they renew their lease."""
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


def _cells(about: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    cells = about.get("cells")
    return cells if isinstance(cells, list) else []


def _failed(about: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    failed = about.get("failed")
    return failed if isinstance(failed, dict) else {}
