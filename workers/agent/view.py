"""View: what of a session's history its model is shown.

It is the first thing a person said, the newest summary, and the rows behind that. Where no summary
is, it is all rows. A fold ends before a row that no call before it waits for, so that no view parts
a call from its result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from colony.agent.history import HistoryRow
from colony.body import Entry
from workers.agent import tokens
from workers.toolloop.view import ViewParams, shown_results


@dataclass(frozen=True)
class View:
    """What is shown of these `rows`; `caps` bound each result and those of a batch."""

    rows: Sequence[HistoryRow]
    caps: ViewParams

    @cached_property
    def summary(self) -> HistoryRow | None:
        """The newest summary."""
        return next((row for row in reversed(self.rows) if row.kind == "summary"), None)

    @property
    def first(self) -> int:
        """The number of the first row that no summary stands for."""
        return self.summary.upto if self.summary else 0

    @cached_property
    def anchor(self) -> int | None:
        """The number of the first row in which a person speaks."""
        return next((at for at, row in enumerate(self.rows) if row.kind == "user"), None)

    @property
    def behind(self) -> list[int]:
        """The numbers of the rows behind the summary."""
        numbers = range(self.first, len(self.rows))
        return [at for at in numbers if self.rows[at].kind != "summary"]

    @cached_property
    def kept(self) -> list[Entry]:
        """What stays whatever is folded: the anchor, where a summary stands for it."""
        if self.anchor is None or self.anchor >= self.first:
            return []
        return [*self.rows[self.anchor].entries]

    @cached_property
    def entries(self) -> list[Entry]:
        """What the model is shown."""
        summary = self.summary.entries if self.summary else ()
        return [*self.kept, *summary, *self.told(self.behind)]

    @property
    def shown_rows(self) -> list[HistoryRow]:
        """The rows that are shown, whole."""
        kept = [self.rows[self.anchor]] if self.kept and self.anchor is not None else []
        summary = [self.summary] if self.summary else []
        return [*kept, *summary, *(self.rows[at] for at in self.behind)]

    def told(self, numbers: Iterable[int]) -> list[Entry]:
        """The entries of the rows with these numbers, their results as they are shown."""
        return [entry for at in numbers for entry in self._shown(self.rows[at])]

    def cut(self, room: int) -> int | None:
        """Where a fold ends, so that what stays behind it has at most `room` tokens.

        The newest part stays however large it is; None where nothing can be folded.
        """
        places = self._places()
        fits, weight = places[-1:], 0
        for at in reversed(self.behind):
            weight += tokens.of_entries(self.told([at]))
            if weight > room:
                break
            fits = [at, *fits] if at in places else fits
        return fits[0] if fits else None

    def folded(self, upto: int) -> list[int]:
        """The numbers of the rows that a fold before row `upto` takes out of the view."""
        return [at for at in self.behind if at < upto and at != self.anchor]

    def with_summary(self, row: HistoryRow) -> "View":
        """The view once a summary is added."""
        return View([*self.rows, row], self.caps)

    @classmethod
    def of(cls, rows: Sequence[HistoryRow], caps: ViewParams) -> Self:
        """The view of a history."""
        return cls(rows, caps)

    def _places(self) -> list[int]:
        """Where a fold may end: before what no call waits for, and behind something to fold."""
        foldable = next((at for at in self.behind if at != self.anchor), len(self.rows))
        return [at for at in self.behind if at > foldable and self.rows[at].kind != "results"]

    def _shown(self, row: HistoryRow) -> Sequence[Entry]:
        return shown_results(row.entries, self.caps) if row.kind == "results" else row.entries


def paired(entries: Sequence[Entry]) -> bool:
    """Whether every call is answered exactly once and at once, and no result answers none."""
    waiting: list[str] = []
    for entry in entries:
        if entry.type == "tool_result":
            if entry.id not in waiting:
                return False
            waiting.remove(entry.id or "")
        elif entry.origin == "user" and waiting:
            return False
        elif entry.type == "tool_call":
            waiting.append(entry.id or "")
    return not waiting
