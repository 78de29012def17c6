"""Rows: which fault is put where in a run of an agent.

A place is a point of a role, or a moment: what a run does when whoever does it is killed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tests.faults.rows import ACTIONS, Action

Role = Literal["agent", "tools", "api", "keeper"]
Moment = Literal[
    "model_waits", "model_is_visible", "look_runs", "change_runs", "ask_is_pending", "folding"
]

MOMENTS: Final[tuple[Moment, ...]] = get_args(Moment)


@dataclass(frozen=True)
class AgentRow:
    """One fault, at one of the first `passages` of a point; at a moment there is no point."""

    role: Role
    action: Action
    point: str = ""
    passages: int = 1
    moment: Moment | None = None

    @property
    def name(self) -> str:
        """How the row is called."""
        return f"{self.role}/{self.moment or self.point}/{self.action}"


def rows() -> Iterator[AgentRow]:
    """Every fault there is for a run of an agent."""
    for role, point, passages in _points():
        for action in ACTIONS:
            yield AgentRow(role, action, point, passages)
    for moment in MOMENTS:
        role: Role = "tools" if moment in ("look_runs", "change_runs") else "agent"
        yield AgentRow(role, "crash", moment=moment)


def _points() -> Iterator[tuple[Role, str, int]]:
    for role, passages in (("agent", 12), ("tools", 3)):
        found: Role = "agent" if role == "agent" else "tools"
        for point in ("after_read", "after_handle", "before_commit", "after_commit"):
            yield found, point, passages
    of_agent = {"show_run": 12, "file_asks": 1, "finish_run": 1, "record": 2, "settle": 4}
    of_api = (
        *("make_session", "begin_run", "resolve_ask", "steer_run", "end_run"),
        *("fork_session", "delete_session"),
    )
    for when in ("before", "after"):
        for script, passed in of_agent.items():
            yield "agent", f"{when}_{script}", passed
        for script in of_api:
            yield "api", f"{when}_{script}", 1
        # Nobody answers: the deadline does.
        yield "keeper", f"{when}_resolve_ask", 1
