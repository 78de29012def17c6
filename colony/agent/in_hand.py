"""In hand: the run of the envelope that a handler has, as it is read and as it is changed.

A handler that annotates a parameter with `RunInHand` is given one. It reads the record as it was
when the handle began, and says what is to change. Nothing changes before the handle is committed,
with all that it emits, and nothing where the run has ended meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import JsonValue

from colony.agent.asks import Ask, Decision
from colony.agent.changes import End, RunChanges
from colony.agent.events import EventKind
from colony.agent.history import HistoryRow
from colony.agent.record import RunRecord, SessionRecord
from colony.topology.model import ToolDeclaration

# The rows of the session from a number on; with a negative number that many of the last.
ReadHistory = Callable[[int], Awaitable[Sequence[HistoryRow]]]


class RunInHand:
    """A run while one of its envelopes is handled.

    `steers` are what a person said meanwhile and no turn has taken up; `decisions` the answers to
    the asks of this very envelope, empty when it is handled first; `tools` what the cell reaches.
    """

    def __init__(
        self,
        record: RunRecord,
        session: SessionRecord,
        *,
        steers: Sequence[str] = (),
        decisions: Mapping[str, Decision] | None = None,
        tools: Mapping[str, ToolDeclaration] | None = None,
        history: ReadHistory | None = None,
    ) -> None:
        self.record = record
        self.session = session
        self.steers = steers
        self.decisions = decisions or {}
        self.tools = tools or {}
        self.changes = RunChanges(session.id, turn=record.turn)
        self._history = history

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    def event(self, kind: EventKind, *, turn: int | None = None, **payload: JsonValue) -> None:
        """Write a durable event, of the current turn where none is given."""
        self.changes.write(kind, self.record.turn if turn is None else turn, payload)

    def tell(self, kind: EventKind, *, turn: int | None = None, **payload: JsonValue) -> None:
        """Tell a live event to whoever follows now."""
        turn = self.record.turn if turn is None else turn
        self.changes.write(kind, turn, payload, durable=False)

    def put(self, **fields: str | int) -> None:
        """Replace fields of the run."""
        self.changes.fields |= {("run", name): str(value) for name, value in fields.items()}

    def put_once(self, name: str, value: str | int) -> None:
        """Replace a field of the run; where it is so already, nothing comes of this step: somebody
        else has made it meanwhile."""
        self.changes.once = (name, str(value))
        self.put(**{name: value})

    def put_in_session(self, **fields: str | int) -> None:
        """Replace fields of the session."""
        self.changes.fields |= {("session", name): str(value) for name, value in fields.items()}

    def count(self, **by: int) -> None:
        """Add to counters of the run."""
        self._count("run", by)

    def count_in_session(self, **by: int) -> None:
        """Add to counters of the session."""
        self._count("session", by)

    def remember(self, row: HistoryRow) -> None:
        """Add a row to the history of the session."""
        self.changes.rows.append(row)

    def take_steers(self) -> Sequence[str]:
        """What a person said meanwhile, which no later step is given again."""
        self.changes.steers_taken = len(self.steers)
        return self.steers

    def ask(self, ask: Ask) -> None:
        """Ask before the envelope in hand is handled on: it comes back with all the decisions."""
        self.changes.asks.append(ask)

    def finish(self, end: End) -> None:
        """End the run; what the handler emits goes out only where the run goes on with a steer."""
        self.changes.end = end

    def forget(self) -> None:
        """Change nothing of all that was said so far."""
        self.changes = RunChanges(self.session.id, turn=self.record.turn)

    async def history(self, start: int = 0) -> Sequence[HistoryRow]:
        """The rows of the session from number `start` on; a negative one counts from the end."""
        return [] if self._history is None else await self._history(start)

    def _count(self, scope: str, by: Mapping[str, int]) -> None:
        counts = self.changes.counts
        for name, number in by.items():
            key = ("session" if scope == "session" else "run", name)
            counts[key] = counts.get(key, 0) + number  # type: ignore[index,arg-type]
