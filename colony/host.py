"""Hosts: what a cell may ask of whoever runs it. No Redis in sight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import JsonValue

from colony.agent.in_hand import RunInHand
from colony.body import Body
from colony.envelope import Emission
from colony.log import Logger
from colony.operations import Operation, StoreReply
from colony.schema import Schema
from colony.topology.model import CellSpec, ToolDeclaration


class Tables(Protocol):
    """The tables of one store cell, as the handler of one envelope sees them.

    Operations of a handle are numbered in the order they are made; a repeated handle gets the first
    answers again.
    """

    async def execute(self, operation: Operation) -> StoreReply:
        """Do `operation` atomically. A refusal is a reply with an error code, not an exception."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What all workers together may ask of one endpoint; 0 is no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a call may be made now; if not, in how many seconds to ask again, and why.

    `why` is `requests`, `tokens`, `in_flight`, `cooldown` (the endpoint asked for it) or `breaker`
    (it failed again and again).
    """

    wait_s: float = 0.0
    why: str | None = None

    @property
    def granted(self) -> bool:
        """Whether the call may be made."""
        return self.why is None


CallOutcome = Literal["answered", "limited", "failed", "neutral"]


class Budget(Protocol):
    """What all workers together may ask of one endpoint. It goes on without Redis, for less."""

    async def take(self, call: str, *, cost: int, lease_ms: int) -> Admission:
        """Whether the call of this name may be made, for `cost` tokens.

        One that is never settled counts as under way for `lease_ms`. A repeat is the same call.
        """

    async def settle(
        self, call: str, *, cost: int | None, outcome: CallOutcome, pause_s: float | None = None
    ) -> None:
        """The call is over: it cost that many tokens, or what was expected where nobody counted.

        `limited` keeps everybody away for `pause_s`, or for a while that grows. `failed`, again and
        again, does so as well. A repeat changes nothing.
        """


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

    def budget(self, name: str, limits: Limits) -> Budget:
        """The budget that all workers share under `name`, which must give no secret away."""

    async def run(self) -> RunInHand | None:
        """The run of the envelope in hand, as it is now; None where it is of none, or that is gone.

        What the handle records there is written with the commit of the handle. Asked again, it is
        the same.
        """

    async def recall(self, name: str) -> bytes | None:
        """What an earlier handle of this envelope recorded under `name`."""

    async def record(self, name: str, value: bytes) -> bytes:
        """Keep `value` under `name` for every handle of this envelope; the first value wins and is
        returned. For what may differ between two handles: a model's answer, a clock."""

    async def show(self, name: str) -> None:
        """Record `name` with nothing, and note that from now on somebody may see what the envelope
        in hand brings about."""

    async def record_request(self, body: bytes, *, provider: str, model: str, attempt: int) -> None:
        """Keep what a model is sent for this envelope, byte for byte, as long as its trace.

        The same bytes are kept once. Nothing fails where they cannot be kept; the log says so.
        """

    async def state(self, scope: str) -> dict[str, str]:
        """The durable state of this cell in `scope` (`cell`, `session`, `trace`), by leaf path."""

    async def update_state(
        self, scope: str, put: Mapping[str, str], remove: Sequence[str]
    ) -> dict[str, str]:
        """Remove the leaves at or below the paths of `remove`, put the leaves of `put`, and return
        the state that results."""

    async def tell(self, kind: str, **facts: JsonValue) -> None:
        """Tell whoever follows the trace now; nobody keeps it, and nothing fails where nobody
        hears it."""

    def keep(self, body: Body, hop: Mapping[str, JsonValue]) -> None:
        """Keep a message as an output of its trace; it is kept when this handle is committed."""

    async def shelve(self, text: str) -> str:
        """The handle of a text that is kept whole beside its trace; kept when this handle is
        committed."""

    async def read_shelved(self, handle: str, *, offset: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes from `offset` on of a text that was shelved, and its size.

        A handle is of use to its own trace, and to the others of the same `context.session_id`.
        Raises NotFound where there is no such text, or it is another's.
        """

    async def announce(self, tools: Sequence[ToolDeclaration]) -> None:
        """Tell every model within reach of this cell, on whatever host, that its tools are these.

        They stand until the cell announces others or leaves the tree. Announced by the host that
        `start` was given, of a type that `announces`.
        """


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a source has come: the number it reached, -1 at the beginning, and how many births it
    took."""

    reached: int = -1
    births: int = 0


class Source(Protocol):
    """What a cell may ask of whoever runs it, to make envelopes of its own.

    Every process that hosts the cell has a source of it; what they share is in Redis. A birth is an
    envelope that leaves by the cell's own edges as the first of a trace.
    """

    @property
    def spec(self) -> CellSpec:
        """The cell as the tree describes it, `${NAME}` replaced."""

    @property
    def directory(self) -> Path | None:
        """The cell's own folder on this host with its published files; None where it has none."""

    @property
    def log(self) -> Logger:
        """A logger that names the cell."""

    async def clock(self) -> int:
        """Milliseconds since the epoch, by the one clock that all hosts share."""

    async def lead(self, lease_ms: int) -> bool:
        """Whether this process is the one among all that holds the source.

        It goes on holding it without asking again, until it stops. A process that is gone holds it
        `lease_ms` longer.
        """

    async def mark(self, name: str = "") -> Mark:
        """How far the source has come under `name`."""

    async def raise_mark(self, mark: int, *, name: str = "", after: int | None = None) -> bool:
        """Reach `mark` with nothing born; False where it was reached before.

        With `after` also where the mark is not `after` any more.
        """

    async def birth(
        self,
        emission: Emission,
        *,
        mark: int,
        name: str = "",
        after: int | None = None,
        session: str = "",
    ) -> bool:
        """Reach `mark` with this birth, both or neither; False, and no birth, as in `raise_mark`.

        A `session` is named in its context, and it gets the last place there. Where too much waits
        in the colony the birth waits too.
        """

    async def forget_mark(self, name: str) -> None:
        """Forget how far the source has come under `name`, which is never to be asked for again."""

    async def admit(self, emission: Emission, *, guard: str, session: str = "") -> str:
        """The trace that opened with this birth, once for each `guard` and emission; of a `session`
        as in `birth`.

        Raises GuardReused where the guard belongs to another emission, Backlogged where too much
        waits.
        """

    async def state(self) -> dict[str, str]:
        """The durable state of this cell in the scope `cell`, by leaf path."""

    async def put_state(self, leaves: Mapping[str, str]) -> None:
        """Put leaves into the state."""

    async def remove_state(self, paths: Sequence[str]) -> None:
        """Remove leaves from the state."""
