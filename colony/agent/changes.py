"""Changes: what a step does to its run, written by the script that settles its delivery."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from colony.agent.asks import Ask
from colony.agent.events import EventKind
from colony.agent.history import HistoryRow
from colony.agent.record import Disposition, Progress, Stop

Scope = Literal["run", "session"]


@dataclass(frozen=True, slots=True)
class Written:
    """An event on its way into the log, or past it where it is only told."""

    kind: EventKind
    turn: int
    payload: str
    durable: bool = True


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run: why it stops, and what its result says beside the counts."""

    stop: Stop
    text: str = ""
    error: str = ""
    disposition: Disposition = "unknown"
    progress: Progress = "complete"

    @property
    def state(self) -> Literal["completed", "failed"]:
        """What the session is afterwards."""
        return "failed" if self.stop == "error" else "completed"


@dataclass(slots=True)
class RunChanges:
    """All that one step does to its run, in order. Counts are added, fields are replaced.

    `turn` is the one that the run is in.

    Where a field of the run is `once` as it says, the step was made before, and all of it is
    dropped. With an `end` what the step emits goes out only where the run goes on with a steer.
    With `asks` the envelope of the step waits, and comes back to its cell once all are answered.
    """

    session: str
    turn: int = -1
    fields: dict[tuple[Scope, str], str] = field(default_factory=dict)
    counts: dict[tuple[Scope, str], int] = field(default_factory=dict)
    events: list[Written] = field(default_factory=list)
    rows: list[HistoryRow] = field(default_factory=list)
    steers_taken: int = 0
    asks: list[Ask] = field(default_factory=list)
    end: End | None = None
    once: tuple[str, str] | None = None

    @property
    def apart(self) -> bool:
        """Whether the step is settled by a script of its own."""
        return bool(self.asks) or self.end is not None

    @property
    def any(self) -> bool:
        """Whether anything changes."""
        return bool(
            self.fields or self.counts or self.events or self.rows or self.steers_taken
            or self.asks or self.end
        )  # fmt: skip

    def size(self) -> int:
        """About how many bytes of it are sent."""
        written = sum(len(event.payload) for event in self.events)
        return written + sum(len(text) for row in self.rows for text in row.texts)

    def write(
        self, kind: EventKind, turn: int, payload: Mapping[str, JsonValue], *, durable: bool = True
    ) -> None:
        """Add an event."""
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        self.events.append(Written(kind, turn, text, durable))
