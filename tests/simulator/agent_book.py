"""The book: what the log of a session tells of its runs, and what must never stand in it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colony.agent.events import Event

Complain = Callable[[str, str | None], None]

PENDING = "pending"
_SHOWN = ("precommit", "visible")
_ANSWERS = ("approval", "permission.expired")


@dataclass
class RunLog:
    """A run as its events tell it. `asks` tells of each what became of it last."""

    id: str
    kind: str
    seq: int = 0
    asks: dict[str, str] = field(default_factory=dict)
    turns: Counter[int] = field(default_factory=Counter)
    settled: set[str] = field(default_factory=set)
    steers: Counter[str] = field(default_factory=Counter)
    result: Mapping[str, Any] | None = None

    @property
    def pending(self) -> set[str]:
        """The asks that nobody has answered."""
        return {ask for ask, state in self.asks.items() if state == PENDING}

    @property
    def dropped(self) -> Counter[str]:
        """The steers that its result names."""
        return Counter((self.result or {}).get("dropped_steers", ()))

    @property
    def owes(self) -> bool:
        """Whether it was a retry that was not even tried."""
        return self.kind == "retry" and (self.result or {}).get("stop") == "budget"

    @property
    def is_to_repeat(self) -> bool:
        """Whether a retry may follow it."""
        result = self.result or {}
        again = result.get("state") == "failed" and result["retry_disposition"] == "retryable"
        return self.owes or (again and result["stream_progress"] in _SHOWN)


class SessionBook:
    """The log of one session, read event by event."""

    def __init__(self, session: str, complain: Complain) -> None:
        self.session = session
        self.runs: dict[str, RunLog] = {}
        self.last = "-"
        self.events = 0
        self._complain = complain

    @property
    def live(self) -> RunLog | None:
        """The run under way."""
        newest = self.newest
        return newest if newest and newest.result is None else None

    @property
    def newest(self) -> RunLog | None:
        """The run that began last."""
        return next(reversed(self.runs.values()), None)

    def read(self, event: Event) -> None:
        """Take in the next event, and say what is wrong with it."""
        self.last, self.events = f"({event.id}", self.events + 1
        run = self.runs.get(event.run_id)
        if run is None:
            run = self._begun(event)
        elif event.kind == "session.init":
            self._complain("it began twice", run.id)
        if run.result is not None:
            self._complain(f"{event.kind} came after its result", run.id)
        if event.seq != run.seq + 1:
            self._complain(f"{event.kind} {event.seq} came after {run.seq}", run.id)
        run.seq = event.seq
        self._take_in(run, event)

    def _begun(self, event: Event) -> RunLog:
        if self.live:
            self._complain(f"it began while {self.live.id} was under way", event.run_id)
        if event.kind != "session.init":
            self._complain(f"it began with {event.kind}", event.run_id)
        run = RunLog(event.run_id, str(event.payload.get("kind")))
        self.runs[run.id] = run
        return run

    def _take_in(self, run: RunLog, event: Event) -> None:
        told: Mapping[str, Any] = event.payload
        match event.kind:
            case "permission.ask":
                if told["ask_id"] in run.asks:
                    self._complain("it asked the same twice", run.id)
                run.asks[told["ask_id"]] = PENDING
            case "approval" | "permission.expired" | "permission.retract":
                if run.asks.get(told["ask_id"]) != PENDING:
                    before = run.asks.get(told["ask_id"], "nobody asked")
                    self._complain(f"{event.kind} came after: {before}", run.id)
                run.asks[told["ask_id"]] = event.kind
            case "tool.result":
                self._settled(run, told)
            case "turn.start":
                run.turns[event.turn] += 1
                if run.turns[event.turn] > 1:
                    self._complain(f"turn {event.turn} began twice", run.id)
            case "steer":
                run.steers[told["text"]] += 1
            case "result":
                self._ended(run, told)

    def _settled(self, run: RunLog, told: Mapping[str, Any]) -> None:
        if told["call_id"] in run.settled:
            self._complain(f"call {told['call_id']} has two results", run.id)
        run.settled.add(told["call_id"])
        ask = told.get("ask_id")
        if ask and (run.asks.get(ask) not in _ANSWERS or told["verdict"] == "none"):
            self._complain(f"a call went on with its ask {run.asks.get(ask)}", run.id)

    def _ended(self, run: RunLog, told: Mapping[str, Any]) -> None:
        run.result = told
        if run.pending:
            self._complain(f"it ended with {len(run.pending)} asks pending", run.id)
        if run.dropped and told["state"] == "completed":
            self._complain("it ended by itself over what it was steered by", run.id)
        if told["turns"] != run.turns.total():
            self._complain(f"its result counts {told['turns']} of {run.turns.total()}", run.id)
