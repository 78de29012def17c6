"""Selection: conditions as scripts take them, and rows as scripts give them back."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from colony.lua.packing import pack
from colony.operations import ANY, Condition, Order, Select, conditions
from colony.schema import SEQ, Row, Table, seq_text

# As in the scripts: above this a value is indexed by its hash.
_LONGEST_INDEXED = 40


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it lies in Redis: its number and the texts of some columns."""

    seq: int
    texts: Mapping[str, bytes | None]

    def text(self, column: str) -> bytes | None:
        """The text of a column; of `seq` too, where the row has no such column itself."""
        return self.texts[column] if column in self.texts else seq_text(self.seq)

    def values(self, table: Table, columns: Sequence[str]) -> Row:
        """The values of these columns."""
        return {
            column: table.value(column, self.texts[column]) if column in self.texts else self.seq
            for column in columns
        }


def pack_selection(table: Table, where: Mapping[str, JsonValue], after: int | None = None) -> bytes:
    """The rows that meet `where` and come after the row numbered `after`.

    Raises UnknownColumn or TypeMismatch.
    """
    tests = [_condition(table, condition) for condition in conditions(where)]
    start = b"" if after is None else seq_text(after)
    if after is not None and tests:
        tests.append({"column": "?seq", "accepts": ">", "or_null": False, "operands": [start]})
    return pack({"conditions": tests, "scan": [[b"(\0\0" + start, b"(\0\1"]]})


def unpack_rows(columns: Sequence[str], flat: Sequence[Any]) -> list[StoredRow]:
    """The rows of an answer that lists for each its number and its values."""
    width = len(columns) + 1
    return [
        StoredRow(int(flat[at]), dict(zip(columns, flat[at + 1 : at + width], strict=True)))
        for at in range(0, len(flat), width)
    ]


def fetched(table: Table, columns: Sequence[str]) -> list[str]:
    """The columns to be read for these, at least one and each once; raises UnknownColumn."""
    found = [c for c in dict.fromkeys(columns) if table.kind(c) and c in table.columns]
    return found or [*table.columns][:1]


def read_columns(table: Table, operation: Select) -> list[str]:
    """The columns that a select reads: those it asks for, and those it goes by."""
    return fetched(table, [*operation.columns, *(order.col for order in operation.order_by)])


def indexed_under(column: str, text: bytes) -> list[bytes]:
    """The range of the index in which the rows are that have `text` in `column`."""
    if len(text) > _LONGEST_INDEXED:
        text = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    entry = column.encode() + b"\0" + text
    return [b"[" + entry + b"\0", b"(" + entry + b"\1"]


def arrange(
    rows: Sequence[StoredRow], columns: Sequence[str], order_by: Sequence[Order], distinct: bool
) -> list[StoredRow]:
    """The rows sorted, NULL before any value, and of those alike in `columns` only the first."""
    arranged = list(rows)
    for order in reversed(order_by):
        arranged.sort(key=lambda row: _place(row.text(order.col)), reverse=order.dir == "desc")
    if not distinct:
        return arranged
    unique: dict[tuple[bytes | None, ...], StoredRow] = {}
    for row in arranged:
        unique.setdefault(tuple(row.text(column) for column in columns), row)
    return list(unique.values())


def _condition(table: Table, condition: Condition) -> dict[str, object]:
    column = condition.column
    texts = [table.text(column, operand) for operand in condition.operands]
    table.kind(column)
    operands = [b""] if condition.accepts == ANY else list(dict.fromkeys(texts))
    packed: dict[str, object] = {
        "column": "?seq" if column == SEQ and SEQ not in table.columns else column,
        "accepts": condition.accepts,
        "or_null": condition.or_null,
        "operands": operands,
    }
    if condition.accepts == "=" and not condition.or_null and column in table.indexed:
        packed["ranges"] = [indexed_under(column, text) for text in operands if text is not None]
    return packed


def _place(text: bytes | None) -> tuple[bool, bytes]:
    return text is not None, text or b""
