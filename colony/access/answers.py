"""Answers: what came of a question, as conversations keep it and as the outputs of its trace."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.access.thread_tables import ThreadTable, thread_tables
from colony.keys import Keys
from colony.link import Link
from colony.schema import Row
from colony.traces import Traces

COLUMNS: Final = frozenset(("turn_id", "question", "answer"))


@dataclass(frozen=True, slots=True)
class Answered:
    """A row that holds the answer to a question, at the path of its store and in its table."""

    store: str
    table: str
    number: int
    values: Row

    def to_json(self) -> dict[str, JsonValue]:
        """The row as a JSON object."""
        return {
            "store": self.store,
            "table": self.table,
            "number": self.number,
            "row": dict(self.values),
        }


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that are kept in one partition."""

    link: Link
    keys: Keys

    async def rows(self, turn_ids: Iterable[str], stores: Iterable[str]) -> list[Answered]:
        """The rows of questions with an answer, of every table that keeps such."""
        tables = await thread_tables(self.link, self.keys, stores, columns=COLUMNS)
        asked = [(table, turn_id) for table in tables for turn_id in sorted(turn_ids)]
        found = await asyncio.gather(*(_answered(*pair) for pair in asked))
        return [answered for of_table in found for answered in of_table]

    async def outputs(self, trace_ids: Iterable[str]) -> list[dict[str, JsonValue]]:
        """The outputs of traces, in the order they came."""
        traces = Traces(self.link, self.keys)
        found = await asyncio.gather(*map(traces.outputs, sorted(trace_ids)))
        return [output for of_trace in found for output in of_trace]


async def _answered(table: ThreadTable, turn_id: str) -> list[Answered]:
    rows = await table.rows({"turn_id": turn_id})
    values = [(row.seq, row.values(table.table, [*table.table.columns])) for row in rows]
    return [
        Answered(table.store, table.name, number, row)
        for number, row in values
        if row.get("answer") is not None
    ]
