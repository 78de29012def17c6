"""Thread tables: the tables of stores that hold threads, found by their columns."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind
from colony.schema import Table
from colony.store.selection import StoredRow, pack, pack_selection, unpack_rows


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
        answer: Sequence[Any] = await self.link.run(
            bind(
                "store_select",
                catalogue=self.keys.store(self.store),
                cells=self.keys.store_cells(self.store, self.name),
                index=self.keys.store_index(self.store, self.name),
                name=self.name,
                definition=self.table.definition,
                conditions=pack_selection(self.table, where),
                columns=pack(columns),
                limit=0,
            )
        )
        # A table that was changed a moment ago is read the next time.
        return unpack_rows(columns, answer[2:]) if answer[0] == b"rows" else []


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
