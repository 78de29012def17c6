"""History: what was said in a session, row by row, as its models are to remember it.

Rows are only ever added. A summary stands for all rows before the one it names; which rows a model
is shown is decided when it is asked.
"""

from typing import Literal, Self

from colony.body import Entry, Frozen

RowKind = Literal["user", "note", "assistant", "results", "summary"]


class HistoryRow(Frozen):
    """One row.

    `user` is what a person said, `note` what the loop said in their place (a nudge), `assistant` a
    whole answer with its calls, `results` the results of all its calls in their order, `summary` a
    summary of every row before number `upto`.
    """

    kind: RowKind
    run_id: str
    turn: int
    entries: tuple[Entry, ...]
    upto: int = 0

    @property
    def texts(self) -> list[str]:
        """What its entries say."""
        return [entry.text or "" for entry in self.entries]

    def encode(self) -> str:
        """The row as it is kept."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def decode(cls, text: bytes | str) -> Self:
        """The row that was kept."""
        return cls.model_validate_json(text)
