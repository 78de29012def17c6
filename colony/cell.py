"""Cells: the contract between a cell type and whoever runs it. No Redis in sight."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, JsonValue

from colony.body import Body
from colony.envelope import Emission, Envelope
from colony.errors import TopologyError
from colony.log import Logger
from colony.operations import Operation, StoreReply
from colony.schema import Schema
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, ToolDeclaration

ENTRY_POINTS = "colony.cells"

# How many envelopes of a cell a process holds at once where handling one takes next to no time.
QUICK = 64

# How much later than a cell's own timeout its handle is given up.
TIMEOUT_MARGIN_MS = 5_000


class Tables(Protocol):
    """The tables of one store cell, as the handler of one envelope sees them.

    Operations of a handle are numbered in the order they are made; a repeated handle gets the first
    answers again (design: receipts).
    """

    async def execute(self, operation: Operation) -> StoreReply:
        """Do `operation` atomically. A refusal is a reply with an error code, not an exception."""


class Host(Protocol):
    """What a cell may ask of whoever runs it, for the envelope in hand."""

    @property
    def spec(self) -> CellSpec:
        """The cell as the tree describes it, `${NAME}` replaced."""

    @property
    def directory(self) -> Path | None:
        """The cell's own folder on this host with its published files; None where it has none."""

    @property
    def log(self) -> Logger:
        """A logger that names the trace and the cell."""

    @property
    def tools(self) -> Sequence[ToolDeclaration]:
        """The tools that edges from here, or from the cells they reach, lead to."""

    def tables(self, schema: Schema) -> Tables:
        """The tables of this cell, made where they are missing."""

    async def recall(self, name: str) -> bytes | None:
        """What an earlier handle of this envelope recorded under `name`."""

    async def record(self, name: str, value: bytes) -> bytes:
        """Keep `value` under `name` for every handle of this envelope; the first value wins and is
        returned. For what may differ between two handles: a model's answer, a clock."""

    async def state(self, scope: str) -> dict[str, str]:
        """The durable state of this cell in `scope` (`cell`, `session`, `trace`), by leaf path."""

    async def update_state(
        self, scope: str, put: Mapping[str, str], remove: Sequence[str]
    ) -> dict[str, str]:
        """Remove the leaves at or below the paths of `remove`, put the leaves of `put`, and return
        the state that results."""

    def keep(self, body: Body, hop: Mapping[str, JsonValue]) -> None:
        """Keep a message as an output of its trace; it is kept when this handle is committed."""


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
