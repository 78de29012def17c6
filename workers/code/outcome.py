"""Outcomes: what a program gave for one envelope, or the one error emission that stands for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope

TOO_LATE = "script_timeout"
BROKEN = "script_failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """A program that gave nothing that may leave; `code` is one of the code cell's error codes."""

    code: str
    detail: str
    hop: dict[str, JsonValue] = field(default_factory=dict)

    def emission(self, envelope: Envelope) -> Emission:
        """The failure as a tool result under the id of the call that `envelope` brought, if any."""
        call = next(envelope.body.each("tool_call"), None)
        call_id = (call.id if call else None) or ""
        entry = Entry.result(call_id, self.detail, is_error=True)
        return Emission.of(entry, finish_reason="error", error_code=self.code, **self.hop)


Outcome = Sequence[Emission] | Failure


def timed_out(timeout_ms: int, consequence: str) -> Failure:
    """The failure of a program that took longer than its cell allows."""
    return Failure(TOO_LATE, f"took longer than {timeout_ms} ms; {consequence}")
