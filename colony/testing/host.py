"""A recording host: everything a cell asks for, kept in memory where a test can read it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog
from pydantic import JsonValue
from structlog.testing import LogCapture

from colony.agent.in_hand import RunInHand
from colony.body import Body
from colony.errors import CellError
from colony.host import Admission, Budget, CallOutcome, Limits, Tables
from colony.log import Logger
from colony.results import handle_of
from colony.schema import Schema
from colony.shelf import not_kept
from colony.topology.model import CellSettings, CellSpec, Contract, Isolation, ToolDeclaration


@dataclass(frozen=True, slots=True)
class Kept:
    """A message that a cell kept as an output of its trace."""

    body: Body
    hop: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a cell sent a model, as it was recorded."""

    body: bytes
    provider: str
    model: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Settled:
    """A call that is over, as a budget was told of it."""

    call: str
    cost: int | None
    outcome: CallOutcome
    pause_s: float | None


class RecordingBudget:
    """A `colony.cell.Budget` that keeps what it is told.

    It answers with `admissions` in their order, and lets every call through once they are used up.
    """

    def __init__(self, name: str = "", limits: Limits | None = None) -> None:
        self.name = name
        self.limits = limits or Limits()
        self.admissions: list[Admission] = []
        self.taken: list[tuple[str, int]] = []
        self.settled: list[Settled] = []

    async def take(self, call: str, *, cost: int, lease_ms: int) -> Admission:
        """The next of `admissions`; the call is in `taken` with its cost."""
        self.taken.append((call, cost))
        return self.admissions.pop(0) if self.admissions else Admission()

    async def settle(
        self, call: str, *, cost: int | None, outcome: CallOutcome, pause_s: float | None = None
    ) -> None:
        """It is in `settled`."""
        self.settled.append(Settled(call, cost, outcome, pause_s))


class RecordingHost:
    """A `colony.host.Host` for one envelope, without Redis.

    `kept`, `told`, `journal`, `sent`, `states` and `logged` hold what the cell did. Handle the same
    envelope again with the same host to see what a redelivery does; `next_envelope` gives the host
    of another one.
    """

    def __init__(
        self,
        spec: CellSpec,
        *,
        directory: Path | None = None,
        tools: Sequence[ToolDeclaration] = (),
        tables: Tables | None = None,
        run: RunInHand | None = None,
    ) -> None:
        self.in_hand = run
        self._spec = spec
        self._directory = directory
        self._tools = tuple(tools)
        self._tables = tables
        self.kept: list[Kept] = []
        self.shelved: dict[str, bytes] = {}
        self.told: list[dict[str, JsonValue]] = []
        self.announced: Sequence[ToolDeclaration] = ()
        self.budgets: dict[str, RecordingBudget] = {}
        self.journal: dict[str, bytes] = {}
        self.sent: list[Sent] = []
        self.states: dict[str, dict[str, str]] = {}
        capture = LogCapture()
        self.logged: Sequence[Mapping[str, object]] = capture.entries
        self._log: Logger = structlog.wrap_logger(
            logging.Logger("cell"),
            processors=[capture],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    @classmethod
    def of(
        cls,
        cell_type: str,
        params: Mapping[str, JsonValue] | None = None,
        *,
        contract: Contract | None = None,
        isolation: Isolation | None = None,
        files: Mapping[str, str] | None = None,
        directory: Path | None = None,
        tools: Sequence[ToolDeclaration] = (),
        tables: Tables | None = None,
        run: RunInHand | None = None,
    ) -> Self:
        """The host of a cell `/cell` of this type."""
        spec = CellSpec(
            path="/cell",
            cell=CellSettings(type=cell_type, isolation=isolation),
            params=dict(params or {}),
            contract=contract,
            files=dict(files or {}),
        )
        return cls(spec, directory=directory, tools=tools, tables=tables, run=run)

    def next_envelope(self) -> Self:
        """The host of the next envelope of the same cell: its state, and a journal of its own."""
        host = type(self)(
            self._spec, directory=self._directory, tools=self._tools, tables=self._tables
        )
        host.states = self.states
        host.budgets = self.budgets
        return host

    @property
    def spec(self) -> CellSpec:
        """The cell under test."""
        return self._spec

    @property
    def directory(self) -> Path | None:
        """The folder the test gave."""
        return self._directory

    @property
    def log(self) -> Logger:
        """A logger whose lines end up in `logged`, as fields: `event`, `log_level`, others."""
        return self._log

    @property
    def tools(self) -> Sequence[ToolDeclaration]:
        """The tools the test gave."""
        return self._tools

    def tables(self, schema: Schema) -> Tables:
        """The tables the test gave; raises CellError where it gave none."""
        if self._tables is None:
            raise CellError(detail=f"{self._spec.path} asks for tables and this host has none")
        return self._tables

    def budget(self, name: str, limits: Limits) -> Budget:
        """The one of this name in `budgets`, made where it is missing."""
        return self.budgets.setdefault(name, RecordingBudget(name, limits))

    async def run(self) -> RunInHand | None:
        """The run the test gave, which holds what is to change in it."""
        return self.in_hand

    async def recall(self, name: str) -> bytes | None:
        """What was recorded under `name`."""
        return self.journal.get(name)

    async def record(self, name: str, value: bytes) -> bytes:
        """The first value recorded under `name`."""
        return self.journal.setdefault(name, value)

    async def show(self, name: str) -> None:
        """Nothing is recorded under `name`, which is in the journal."""
        await self.record(name, b"")

    async def record_request(self, body: bytes, *, provider: str, model: str, attempt: int) -> None:
        """The request is in `sent`."""
        self.sent.append(Sent(body, provider, model, attempt))

    async def state(self, scope: str) -> dict[str, str]:
        """The state in `scope`; every scope is one for this host."""
        return dict(self.states.get(scope, {}))

    async def update_state(
        self, scope: str, put: Mapping[str, str], remove: Sequence[str]
    ) -> dict[str, str]:
        """The state in `scope` without the leaves at or below `remove` and with those of `put`."""
        left = {
            path: text
            for path, text in self.states.get(scope, {}).items()
            if not any(path == gone or path.startswith(f"{gone}.") for gone in remove)
        }
        self.states[scope] = {**left, **put}
        return dict(self.states[scope])

    async def tell(self, kind: str, **facts: JsonValue) -> None:
        """The event is in `told`, its kind as the fact `kind`."""
        self.told.append({"kind": kind, **facts})

    def keep(self, body: Body, hop: Mapping[str, JsonValue]) -> None:
        """The message is in `kept`."""
        self.kept.append(Kept(body, dict(hop)))

    async def shelve(self, text: str) -> str:
        """The text is in `shelved`, under the handle of a trace `trace`."""
        data = text.encode(errors="replace")
        handle = handle_of(data, "trace")
        self.shelved[handle] = data
        return handle

    async def read_shelved(self, handle: str, *, offset: int, limit: int) -> tuple[bytes, int]:
        """A range of what is in `shelved`."""
        if handle not in self.shelved:
            raise not_kept(handle)
        data = self.shelved[handle]
        return data[offset : offset + limit], len(data)

    async def announce(self, tools: Sequence[ToolDeclaration]) -> None:
        """The tools are in `announced`."""
        self.announced = tuple(tools)
