"""Thread tables: the tables of stores that hold threads, found by their columns."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from colony.keys import Keys
from colony.link import Link
from colony.schema import Row, Table
from colony.store.calls import reading
from colony.store.selection import StoredRow, unpack_rows


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """A row of a thread or of a conversation. `number` tells its place in the order in which rows
    were added."""

    store: str
    table: str
    number: int
    values: Row

    @property
    def size(self) -> int:
        """How many bytes what was said has, as it is kept."""
        said = self.values.get("turn", self.values.get("answer"))
        return len(said.encode(errors="replace")) if isinstance(said, str) else 0

    def to_json(self) -> dict[str, JsonValue]:
        """The row as a JSON object."""
        return {
            "store": self.store,
            "table": self.table,
            "number": self.number,
            "size": self.size,
            "row": dict(self.values),
        }


@dataclass(frozen=True, slots=True)
class ThreadTable:
    """A table that holds threads, at the path of its store."""

    link: Link
    keys: Keys
    store: str
    name: str
    table: Table

    async def rows(
        self, where: Mapping[str, JsonValue], hidden: Sequence[str] = ()
    ) -> list[StoredRow]:
        """The rows that meet `where` in the order they were added, with what is kept `hidden`."""
        columns = [*self.table.columns, *hidden]
        call = reading(self.keys, self.store, self.name, self.table, where=where, columns=columns)
        answer: Sequence[Any] = await self.link.run(call)
        # A table that was changed a moment ago is read the next time.
        return unpack_rows(columns, answer[2:]) if answer[0] == b"rows" else []

    def recorded(self, row: StoredRow) -> RecordedRow:
        """The row with all that the table has of it."""
        return RecordedRow(
            self.store, self.name, row.seq, row.values(self.table, [*self.table.columns])
        )


async def thread_tables(
    link: Link, keys: Keys, stores: Iterable[str], *, columns: Set[str]
) -> list[ThreadTable]:
    """The tables of the stores at some paths that have at least these columns."""
    paths = [*stores]
    found = await asyncio.gather(*(link.command("HGETALL", keys.store(path)) for path in paths))
    return [
        ThreadTable(link, keys, path, name.decode(), table)
        for path, flat in zip(paths, found, strict=True)
        for name, definition in zip(flat[::2], flat[1::2], strict=True)
        if (table := Table.from_definition(definition)).columns.keys() >= columns
    ]
