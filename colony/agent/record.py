"""Records: what is kept of a session of an agent, and of a run.

Both are hashes in Redis, changed by the script of whatever transition they are in. Numbers are
counted there, so a reader sees them as they were at one moment.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue

from colony.body import Frozen

SessionState = Literal["idle", "running", "awaiting", "completed", "failed", "cancelled"]
RunKind = Literal["prompt", "retry", "compact"]
Stop = Literal[
    "end_turn",
    "max_turns",
    "max_tool_calls",
    "max_consecutive_failures",
    "budget",
    "no_progress",
    "refusal",
    "length",
    "hook",
    "compacted",
    "cancelled",
    "error",
]
Disposition = Literal["unknown", "retryable", "permanent"]
Progress = Literal["unknown", "precommit", "visible", "complete"]

ENDED: Final = frozenset({"completed", "failed", "cancelled"})

Counter = Annotated[int, Field(ge=0)]


class Limits(Frozen):
    """What a run may use; 0 is no limit.

    `max_tokens` counts input and output tokens of the whole session, caches excluded; `max_cost` is
    in the currency of the price table, over the session; `max_wall_s` is of one run.
    """

    max_turns: Counter = 2000
    max_tool_calls: Counter = 8000
    max_consecutive_failures: Counter = 5
    max_tokens: Counter = 0
    max_cost: Annotated[float, Field(ge=0)] = 0.0
    max_wall_s: Counter = 0

    def tightened(self, by: Mapping[str, JsonValue]) -> "Limits":
        """These with what a request wants of them: a request may only lower a limit."""
        wanted = Limits.model_validate({**self.model_dump(), **by})
        lower = {name: _lower(getattr(self, name), getattr(wanted, name)) for name in by}
        return self.model_copy(update=lower)


def _lower(own: float, wanted: float) -> float:
    return min((value for value in (own, wanted) if value), default=0)


class Usage(Frozen):
    """Tokens that models were sent and gave; the cost is in millionths of the price's currency."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_micro: int = 0


class SessionRecord(Frozen):
    """A session of an agent as it is at one moment. Times are milliseconds since the epoch.

    `run_id` is the newest run, live while the state is `running` or `awaiting`. `rules` are the
    permission rules it was made with, `learned` those that verdicts have taught, `ask_policy`
    what becomes of a call that would ask. `retry_pending` says that a retry is owed before any
    prompt. `used` is the estimate of the newest request in tokens, of a `window`.
    """

    id: str
    agent: str
    owner: str
    state: SessionState
    created_at: int
    updated_at: int
    run_id: str = ""
    model: str = ""
    title: str = ""
    limits: Limits = Field(default_factory=Limits)
    rules: dict[str, list[str]] = Field(default_factory=dict)
    learned: tuple[str, ...] = ()
    ask_policy: Literal["ask", "deny"] = "ask"
    pending: int = 0
    runs: int = 0
    usage: Usage = Field(default_factory=Usage)
    used: int = 0
    window: int = 0
    stop: str = ""
    error: str = ""
    disposition: Disposition = "unknown"
    progress: Progress = "unknown"
    retry_pending: bool = False
    fork_of: str = ""

    @property
    def live(self) -> bool:
        """Whether a run of it has not ended."""
        return self.state in ("running", "awaiting")

    @classmethod
    def read(cls, session_id: str, fields: Mapping[str, str]) -> Self:
        """The record that the fields of its hash are."""
        numbers = ("created_at", "updated_at", "pending", "runs", "used", "window")
        texts = ("agent", "owner", "state", "run_id", "model", "title", "stop", "error", "fork_of")
        given: dict[str, object] = {name: int(fields.get(name) or 0) for name in numbers}
        given |= {name: fields.get(name, "") for name in texts}
        given |= {
            "id": session_id,
            "limits": Limits.model_validate_json(fields.get("limits") or "{}"),
            "rules": json.loads(fields.get("rules") or "{}"),
            "learned": tuple(json.loads(fields.get("learned") or "[]")),
            "ask_policy": fields.get("ask_policy") or "ask",
            "usage": _usage(fields),
            "disposition": fields.get("disposition") or "unknown",
            "progress": fields.get("progress") or "unknown",
            "retry_pending": fields.get("retry_pending") == "1",
        }
        return cls.model_validate(given)


class RunRecord(Frozen):
    """A run as it is at one moment.

    `turn` is the newest model call, from 0, -1 before the first; `batch` the newest batch of tool
    calls of the run, from 0. `phase` is what it does. `open_calls` are calls whose canonical result
    is owed, `repeats` how often each call was made, by its digest.
    """

    id: str
    session: str
    agent: str
    kind: RunKind
    started_at: int
    seq: int = 0
    turn: int = -1
    batch: int = -1
    turns: int = 0
    tool_calls: int = 0
    failures: int = 0
    nudges: int = 0
    usage: Usage = Field(default_factory=Usage)
    limits: Limits = Field(default_factory=Limits)
    phase: str = ""
    progress: Progress = "unknown"
    pending: int = 0
    text: str = ""
    open_calls: tuple[tuple[str, str], ...] = ()
    repeats: dict[str, int] = Field(default_factory=dict)
    compacted_turn: int = -1
    wrapping_up: str = ""
    state: str = "running"
    fields: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def read(cls, run_id: str, fields: Mapping[str, str]) -> Self:
        """The record that the fields of its hash are."""
        numbers = ("seq", "turns", "tool_calls", "failures", "nudges", "pending", "started_at")
        texts = ("session", "agent", "phase", "text", "wrapping_up")
        repeats = {
            name.removeprefix("repeat:"): int(count)
            for name, count in fields.items()
            if name.startswith("repeat:")
        }
        given: dict[str, object] = {name: int(fields.get(name) or 0) for name in numbers}
        given |= {name: fields.get(name, "") for name in texts}
        given |= {name: int(fields.get(name) or -1) for name in ("turn", "batch", "compacted_turn")}
        given |= {
            "id": run_id,
            "kind": fields.get("kind") or "prompt",
            "state": fields.get("state") or "running",
            "progress": fields.get("progress") or "unknown",
            "limits": Limits.model_validate_json(fields.get("limits") or "{}"),
            "usage": _usage(fields),
            "open_calls": tuple(
                tuple(call) for call in json.loads(fields.get("open_calls") or "[]")
            ),
            "repeats": repeats,
            "fields": dict(fields),
        }
        return cls.model_validate(given)


def _usage(fields: Mapping[str, str]) -> Usage:
    return Usage(**{name: int(fields.get(name) or 0) for name in Usage.model_fields})
