"""Threads: the question and its rounds, as the rows of the store tell them.

Completeness is a comparison of ids: no count and no order of arrival can change it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from colony.body import Entry
from colony.schema import Row
from workers.toolloop.rows import ASSISTANT, SUMMARY, TOOL, USER, entries_of


@dataclass(slots=True)
class Round:
    """One answer of the model with calls in it, and the first result of each call."""

    iteration: int
    said: list[Entry] = field(default_factory=list)
    results: dict[str, Entry] = field(default_factory=dict)
    claimed: bool = False

    @property
    def expected(self) -> list[str]:
        """The ids of its calls, in the order in which the model made them."""
        return [entry.id or "" for entry in self.said if entry.type == "tool_call"]

    @property
    def missing(self) -> list[str]:
        """The ids that have no result yet."""
        return [call_id for call_id in self.expected if call_id not in self.results]

    @property
    def complete(self) -> bool:
        """Whether calls were made and each of them has its result."""
        return bool(self.expected) and not self.missing

    @property
    def answers(self) -> list[Entry]:
        """The results in call order; a result of no call is left out."""
        return [self.results[call_id] for call_id in self.expected if call_id in self.results]


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands for all rounds up to and with `boundary`."""

    boundary: int
    entry: Entry


@dataclass(slots=True)
class Thread:
    """What is known of one question: what was said `earlier` in its session, and its rounds.

    Of several summaries the one that reaches furthest counts.
    """

    question: Entry | None = None
    earlier: list[Entry] = field(default_factory=list)
    rounds: dict[int, Round] = field(default_factory=dict)
    summary: Summary | None = None

    @classmethod
    def of(cls, rows: Iterable[Row], turn_id: str) -> Self:
        """The thread that the rows of `turn_id` tell; of two rows for one thing one counts."""
        thread = cls()
        for row in rows:
            if row.get("turn_id") == turn_id:
                thread._add(row)
        return thread

    def complete(self, iteration: int) -> bool:
        """Whether every call of this round has a result."""
        found = self.rounds.get(iteration)
        return found is not None and found.complete

    @property
    def in_order(self) -> list[Round]:
        """The rounds in which the model has said something, the oldest first."""
        return [self.rounds[number] for number in sorted(self.rounds) if self.rounds[number].said]

    @property
    def unfolded(self) -> list[Round]:
        """The rounds that no summary stands for, the oldest first."""
        boundary = -1 if self.summary is None else self.summary.boundary
        return [found for found in self.in_order if found.iteration > boundary]

    def _add(self, row: Row) -> None:
        number, role = row["iter"], row["role"]
        assert isinstance(number, int)
        if role == USER:
            if self.question is None:
                *self.earlier, self.question = entries_of(row)
            return
        if role == SUMMARY:
            if self.summary is None or number > self.summary.boundary:
                self.summary = Summary(number, entries_of(row)[0])
            return
        if role not in (ASSISTANT, TOOL):
            return
        found = self.rounds.setdefault(number, Round(number))
        if role == TOOL:
            for entry in entries_of(row):
                found.results.setdefault(entry.id or "", entry)
        elif not found.said:
            found.said = entries_of(row)
            found.claimed = row.get("fired") == 1
