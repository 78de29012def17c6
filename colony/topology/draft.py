"""Drafts: a tree as it was read, each part with the place it is written at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from colony.topology.expressions import Expression
from colony.topology.findings import Place
from colony.topology.model import (
    QUIET,
    CellSpec,
    ColonySettings,
    Contract,
    Edge,
    EdgeSpec,
    Modifier,
    TopologySpec,
)


@dataclass(frozen=True)
class DraftCell:
    """A cell and its `config.json`; whether its type begins traces of its own, and what cells of it
    may emit, declared or not."""

    spec: CellSpec
    place: Place
    begins_traces: bool = False
    emits: frozenset[str] = frozenset()

    @property
    def contract(self) -> Contract | None:
        """What the cell declares, where it declares anything."""
        return self.spec.contract


@dataclass(frozen=True, eq=False)
class DraftEdge:
    """An edge with absolute ends and the place it is written at.

    `compiled` is absent where one of its expressions is broken.
    """

    spec: EdgeSpec
    place: Place
    compiled: Edge | None = None

    @property
    def source(self) -> str:
        """The path the edge leaves from."""
        return self.spec.source

    @property
    def target(self) -> str:
        """The path the edge leads to."""
        return self.spec.target

    @property
    def condition(self) -> Expression | None:
        """The condition, where there is one that can be parsed."""
        return self.compiled.condition if self.compiled else None

    @property
    def modifier(self) -> Modifier | None:
        """The modifier, where there is one that can be parsed."""
        return self.compiled.modifier if self.compiled else None

    def expressions(self) -> Iterator[tuple[Place, Expression]]:
        """Every expression with the place it is written at."""
        if self.condition is not None:
            yield self.place.at("condition"), self.condition
        yield from self.modifier_expressions()

    def modifier_expressions(self) -> Iterator[tuple[Place, Expression]]:
        """Every expression of the modifier with the place it is written at."""
        if self.modifier is None:
            return
        for key, expression in self.modifier.set_context.items():
            yield self.place.at("modifier", "set_context", key), expression
        for key, expression in self.modifier.set_hop.items():
            yield self.place.at("modifier", "set_hop", key), expression


@dataclass(frozen=True)
class Draft:
    """A tree before it is judged.

    `broken` are the paths whose `config.json` says too little to make a cell or a hive of them:
    edges may name them, and nothing more is said about them. `doubtful` are the paths with a
    contract or an edge that could not be read: nothing is concluded from what seems to be missing.
    """

    settings: ColonySettings
    hives: Mapping[str, Place]
    agents: tuple[str, ...]
    cells: Mapping[str, DraftCell]
    edges: tuple[DraftEdge, ...]
    broken: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()

    def defines(self, path: str) -> bool:
        """Whether a message can be sent to `path`."""
        return path in self.cells or path in self.hives or path in self.broken

    def is_store(self, path: str) -> bool:
        """Whether a store lies at `path`."""
        return path in self.cells and self.cells[path].spec.cell.type == "store"

    @cached_property
    def into(self) -> Mapping[str, tuple[DraftEdge, ...]]:
        """The edges that lead to each path."""
        return _grouped((edge.target, edge) for edge in self.edges)

    @cached_property
    def out_of(self) -> Mapping[str, tuple[DraftEdge, ...]]:
        """The edges that leave each path, in file order."""
        return _grouped((edge.source, edge) for edge in self.edges)

    def spec(self) -> TopologySpec:
        """The tree as it is published."""
        return TopologySpec(
            settings=self.settings,
            hives=tuple(self.hives),
            agents=self.agents,
            cells=tuple(cell.spec for cell in self.cells.values()),
            edges=tuple(edge.spec for edge in self.edges),
        )


def is_virtual(path: str) -> bool:
    """Whether `path` belongs to colony itself and not to a tree."""
    return path == "/colony" or path.startswith("/colony/")


def is_quiet(path: str) -> bool:
    """Whether `path` is the lane on which a stalled trace is taken up."""
    return path == QUIET


def _grouped(pairs: Iterator[tuple[str, DraftEdge]]) -> Mapping[str, tuple[DraftEdge, ...]]:
    groups: dict[str, list[DraftEdge]] = {}
    for path, edge in pairs:
        groups.setdefault(path, []).append(edge)
    return {path: tuple(edges) for path, edges in groups.items()}
