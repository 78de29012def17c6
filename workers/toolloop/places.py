"""Places: where in a view its question and its summary stand, which its texts do not tell.

They ride in hop beside the view, for whoever takes it apart again, with how many of its rounds have
left it. A view of which nothing is told begins with its question, and has no summary and all of its
rounds.
"""

from dataclasses import dataclass
from typing import Self

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.toolloop.thread import Thread

QUESTION_AT, SUMMARY_AT, LEFT_OUT = "question_at", "summary_at", "left_out"


@dataclass(frozen=True, slots=True)
class Places:
    """The positions of the question and of the summary among the entries of a view, and how many
    rounds are not in it, as told."""

    question: int | None = None
    summary: int | None = None
    left_out: int = 0

    @classmethod
    def of(cls, envelope: Envelope) -> Self:
        """The places that came beside a view."""
        question, summary, left_out = map(envelope.hop.get, (QUESTION_AT, SUMMARY_AT, LEFT_OUT))
        return cls(_number(question), _number(summary), _number(left_out) or 0)

    @property
    def rounds(self) -> int:
        """The position from which on there are rounds, and nothing else but the question."""
        return max(0 if place is None else place + 1 for place in (self.question, self.summary))


def with_places(fired: Emission, thread: Thread) -> Emission:
    """The view of `thread`, with its places told."""
    summary = thread.summary.entry if thread.summary else None
    told = {
        QUESTION_AT: _place(fired, thread.question),
        SUMMARY_AT: _place(fired, summary),
        LEFT_OUT: sum(_place(fired, found.said[0]) is None for found in thread.unfolded),
    }
    hop: dict[str, JsonValue] = {key: place for key, place in told.items() if place}
    return fired.model_copy(update={"hop": {**fired.hop, **hop}})


def _place(fired: Emission, entry: Entry | None) -> int | None:
    # By identity: anybody may have said the same words before.
    entries = enumerate(fired.body.entries)
    return next((place for place, found in entries if found is entry), None)


def _number(found: JsonValue) -> int | None:
    return int(found) if isinstance(found, (int, float)) else None
