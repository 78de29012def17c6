"""Asks: questions of a run that somebody has to answer, and what was answered."""

from collections.abc import Mapping
from typing import Literal

from pydantic import JsonValue

from colony.body import Frozen
from colony.envelope import derived_id, digest

Verdict = Literal["allow_once", "allow_always", "deny"]
AskKind = Literal["permission", "result_release"]


class Ask(Frozen):
    """A question that stands before a call is made, or before its result is let through.

    `args_hash` is the digest of `args`; what is executed is checked against it. `deadline` is the
    millisecond since the epoch after which it counts as denied. `rule` is what `allow_always` would
    teach, empty where nothing exact can be learned.
    """

    id: str
    call_id: str
    tool: str
    args: dict[str, JsonValue]
    reason: str
    kind: AskKind = "permission"
    args_hash: str = ""
    deadline: int = 0
    rule: str = ""

    @classmethod
    def of_call(
        cls,
        run_id: str,
        call_id: str,
        tool: str,
        args: Mapping[str, JsonValue],
        *,
        turn: int,
        reason: str,
        kind: AskKind = "permission",
    ) -> "Ask":
        """The ask about a call of a turn: asked twice, it is the same."""
        return cls(
            id=derived_id("ask", run_id, turn, call_id, kind),
            call_id=call_id,
            tool=tool,
            args=dict(args),
            reason=reason,
            kind=kind,
            args_hash=digest(dict(args)),
        )


class Decision(Frozen):
    """How an ask was answered. `by` is `client` or `deadline`; edited arguments are in `args`."""

    verdict: Verdict
    reason: str = ""
    by: Literal["client", "deadline"] = "client"
    actor: str = ""
    args: dict[str, JsonValue] | None = None
    args_hash: str = ""
    learned: bool = False

    @property
    def allows(self) -> bool:
        """Whether what was asked about may go on."""
        return self.verdict in ("allow_once", "allow_always")
