"""Answers: what came of a question, as conversations keep it and as the outputs of its trace."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.access.thread_tables import RecordedRow, ThreadTable, thread_tables
from colony.keys import Keys
from colony.link import Link
from colony.traces import Traces

COLUMNS: Final = frozenset(("turn_id", "question", "answer"))


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that are kept in one partition."""

    link: Link
    keys: Keys

    async def rows(self, turn_ids: Iterable[str], stores: Iterable[str]) -> list[RecordedRow]:
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


async def _answered(table: ThreadTable, turn_id: str) -> list[RecordedRow]:
    rows = map(table.recorded, await table.rows({"turn_id": turn_id}))
    return [row for row in rows if row.values.get("answer") is not None]
