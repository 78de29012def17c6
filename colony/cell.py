"""Cells: the contract between a cell type and whoever runs it. No Redis in sight."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, JsonValue

from colony.envelope import Emission, Envelope
from colony.errors import TopologyError
from colony.host import Host, Source
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, Isolation, ToolDeclaration

ENTRY_POINTS = "colony.cells"

# How many envelopes of a cell a process holds at once where handling one takes next to no time.
QUICK = 64

# How much later than a cell's own timeout its handle is given up.
TIMEOUT_MARGIN_MS = 5_000


class Cell:
    """A cell type. One instance handles many envelopes, concurrently up to `max_concurrency`.

    A cell knows its envelope, its params and its host: no address, no Redis, no global. A tool's
    failure is an emission with `hop.error_code`, because the model should see it.
    """

    class Params(BaseModel):
        """The `params` slot of a `config.json`, closed unless a type says otherwise."""

        model_config = ConfigDict(frozen=True, extra="forbid")

    default_concurrency: ClassVar[int] = 4
    # The least that one handle is given where neither tree nor cell says more, in milliseconds.
    default_message_timeout_ms: ClassVar[int] = 0
    # What a model is told when the tree's contract declares no tool.
    default_tool: ClassVar[ToolDeclaration | None] = None
    # What every cell of the type may put in hop, whatever its contract declares: edges may read it.
    emits: ClassVar[frozenset[str]] = frozenset()
    # Where its envelopes may be handled, as `cell.isolation` says it.
    isolations: ClassVar[tuple[Isolation, ...]] = ("inline", "job")
    # Whether what is left out of a long result can be asked for by another call: then nothing of it
    # has to be shelved.
    reads_ranges: ClassVar[bool] = False
    # Whether cells of the type learn their tools only while they run, and announce them.
    announces: ClassVar[bool] = False

    def __init__(self, params: Params) -> None:
        self.params = params

    @classmethod
    def declare(cls, params: Mapping[str, JsonValue]) -> ToolDeclaration | None:
        """What a model is told of a cell with these params, where the tree's contract is silent."""
        return cls.default_tool

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterable[Flaw]:
        """What would keep a cell with this description from working, beyond its params.

        `spec.params` fit `Params`, and every `${NAME}` in them is replaced.
        """
        return ()

    @property
    def max_concurrency(self) -> int:
        """How many envelopes this cell handles at once in one process."""
        return int(getattr(self.params, "max_concurrency", self.default_concurrency))

    def message_timeout_ms(self, written: int | None, default: int) -> int:
        """How long one handle may take, in milliseconds: as written for the cell, or the default.

        It is always above what the cell gives its own work, whose end is an answer and not a
        dead letter.
        """
        own = int(getattr(self.params, "external_timeout_ms", 0))
        least = own + TIMEOUT_MARGIN_MS if own else 0
        return max(written or max(default, self.default_message_timeout_ms), least)

    def killed_after_ms(self, limit_ms: int) -> int:
        """How long one handle may take in a process of its own, which can be killed: by default as
        long as one handle may take at all, `limit_ms`."""
        return limit_ms

    @property
    def prefetch(self) -> int:
        """How many envelopes a process has in hand at once, those that wait for their turn
        included. More than are handled at once pays only where handling is quick."""
        return self.max_concurrency

    async def start(self, host: Host) -> None:
        """Open what the cell needs; called once before the first envelope of a process."""

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Handle one envelope. An empty answer ends the chain on purpose.

        May be called again for the same envelope after a crash; what it returns is published once.
        """
        raise NotImplementedError

    async def probe(self) -> str:
        """One line about what the cell reaches, tried just now; raises ColonyError where it cannot.

        Called once the cell is started. It may cost what one small call of the cell does.
        """
        return "starts"

    async def run(self, source: Source) -> None:
        """Make envelopes of its own until cancelled; by default there are none.

        Runs beside `handle` in every process, from `start` to `stop`. What it raises is logged, and
        it is called again after a while.
        """

    async def stop(self) -> None:
        """Close what `start` opened."""


def cell_type(name: str) -> type[Cell]:
    """The cell type called `name`, found by the entry points of `colony.cells`.

    Raises TopologyError where none is installed.
    """
    point = _installed(tuple(sys.path)).get(name)
    if point is None:
        raise TopologyError(detail=f"no cell type {name!r} is installed")
    found: type[Cell] = point.load()
    return found


@cache
def _installed(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    # Looking reads the metadata of every package: too slow for each cell of a tree. The first of
    # several points of one name is the one that counts.
    return {point.name: point for point in reversed(tuple(entry_points(group=ENTRY_POINTS)))}


def tool_declaration(spec: CellSpec) -> ToolDeclaration | None:
    """How a model is told of the cell as a tool: as its contract says, else as its type does."""
    if spec.contract is not None and spec.contract.tool is not None:
        return spec.contract.tool
    return cell_type(spec.cell.type).declare(spec.params)
