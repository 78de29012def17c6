"""Replies: how what a script answered to an operation is read."""

from collections.abc import Sequence
from typing import Any

from colony.errors import ConstraintViolation
from colony.operations import Insert, Newest, Operation, Select, Settle, StoreReply
from colony.schema import Table
from colony.store.selection import StoredRow, arrange, fetched, read_columns, unpack_rows


def read_reply(operation: Operation, table: Table, answer: Sequence[Any]) -> StoreReply:
    """The reply to an operation; raises ConstraintViolation where a unique key was taken."""
    token, count = answer[0], int(answer[1])
    if token == b"taken":
        if isinstance(operation, Insert) and operation.on_conflict == "ignore":
            return StoreReply("insert")
        raise ConstraintViolation(columns=unique_columns(table, answer[1]))
    if token == b"rows" and isinstance(operation, Select):
        return _selected(operation, table, unpack_rows(read_columns(table, operation), answer[2:]))
    if token == b"rows" and isinstance(operation, Newest):
        found = unpack_rows(fetched(table, operation.columns), answer[2:])
        return StoreReply("newest", count, [row.values(table, operation.columns) for row in found])
    if token == b"won":
        columns = [*table.columns]
        rows = [row.values(table, columns) for row in unpack_rows(columns, answer[2:])]
        return StoreReply("settle", 1, rows, missing=0)
    if token == b"settled":
        return StoreReply("settle", missing=None if count < 0 else count)
    return StoreReply(operation.operation, count)


def is_late(operation: Operation, reply: StoreReply) -> bool:
    """Whether the row changes nothing any more: it is known, or its round was claimed before."""
    if isinstance(operation, Settle):
        return reply.missing == 0 and not reply.won
    return isinstance(operation, Insert) and reply.rows_affected == 0


def unique_columns(table: Table, nth: bytes) -> str:
    """The columns of the unique key that a script names by its number."""
    return ", ".join(table.unique[int(nth) - 1])


def _selected(operation: Select, table: Table, found: Sequence[StoredRow]) -> StoreReply:
    arranged = arrange(found, operation.columns, operation.order_by, operation.distinct)
    rows = [row.values(table, operation.columns) for row in arranged[: operation.limit]]
    return StoreReply("select", len(rows), rows)
