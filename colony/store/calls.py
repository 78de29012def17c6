"""Calls: how an operation on a table becomes the call of one script."""

import hashlib
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from colony.errors import InvalidOperation
from colony.keys import Keys
from colony.lua.packing import pack
from colony.lua.registry import Argument, Call, bind
from colony.operations import (
    Count,
    Delete,
    Insert,
    Newest,
    Operation,
    Select,
    Settle,
    Update,
    Upsert,
)
from colony.schema import ANSWERS, EXPECTS, ROUND, TRACE, Row, Table
from colony.store.selection import fetched, indexed_under, pack_selection, read_columns

# How many rows leave at most with one that comes.
EXPIRED_AT_ONCE = 64

_SCRIPTS = {
    Insert: "store_insert",
    Upsert: "store_upsert",
    Update: "store_update",
    Delete: "store_delete",
    Settle: "settle",
}


def changing(
    keys: Keys, path: str, table: Table, operation: Operation, *, trace_id: str, mark: str
) -> Call:
    """The call that changes rows, with `mark` on its receipt, for an envelope of the trace.

    Raises InvalidOperation, UnknownColumn or TypeMismatch.
    """
    name, content = operation.table, operation.model_dump_json().encode()
    return bind(
        _SCRIPTS[type(operation)],
        **_of_table(keys, path, name, table),
        trace=keys.trace(trace_id),
        receipts=keys.receipts(trace_id),
        unique=keys.store_unique(path, name),
        operation=mark,
        digest=hashlib.blake2b(content, digest_size=12).hexdigest(),
        **_arguments(operation, table, trace_id),
    )


def selecting(keys: Keys, path: str, table: Table, operation: Select | Count) -> Call:
    """The call that reads what a select or count asks for; raises UnknownColumn or TypeMismatch."""
    columns, limit, after = list[str](), 0, None
    if isinstance(operation, Select):
        columns = read_columns(table, operation)
        after = operation.after
        if not operation.order_by and not operation.distinct:
            limit = operation.limit or 0
    return reading(
        keys,
        path,
        operation.table,
        table,
        where=operation.where,
        after=after,
        columns=columns,
        limit=limit,
    )


def reading(
    keys: Keys,
    path: str,
    name: str,
    table: Table,
    *,
    where: Mapping[str, JsonValue],
    columns: Sequence[str],
    after: int | None = None,
    limit: int = 0,
) -> Call:
    """The call that reads columns, and what is kept hidden beside them, of the rows that meet
    `where`; without a limit of all of them. Raises UnknownColumn or TypeMismatch."""
    return bind(
        "store_select",
        **_of_table(keys, path, name, table),
        conditions=pack_selection(table, where, after),
        columns=pack(columns),
        limit=limit,
    )


def newest(keys: Keys, path: str, table: Table, operation: Newest) -> Call:
    """The call that reads the newest rows under a value; raises InvalidOperation."""
    ((column, value),) = operation.where.items()
    text = table.text(column, value)
    if column not in table.indexed:
        raise InvalidOperation(operation="newest", detail=f"newest needs an index on {column}")
    return bind(
        "store_newest",
        **_of_table(keys, path, operation.table, table),
        column=column,
        value=text or b"",
        range=pack(indexed_under(column, text or b"")),
        columns=pack(fetched(table, operation.columns)),
        limit=operation.limit,
        max_bytes=operation.max_bytes,
    )


def making(
    keys: Keys,
    path: str,
    name: str,
    table: Table,
    *,
    before: bytes,
    seeds: Sequence[Row],
    trace_id: str,
) -> Call:
    """The call that defines a table, where its definition is still what it was `before`."""
    return bind(
        "store_make",
        **_of_table(keys, path, name, table),
        trace=keys.trace(trace_id),
        unique=keys.store_unique(path, name),
        before=before,
        packed=pack([table.row(row) for row in seeds]),
    )


def expiring(keys: Keys, path: str, name: str, definition: bytes, retain_s: int) -> Call:
    """The call that removes some rows that were kept long enough."""
    return bind(
        "store_expire",
        cells=keys.store_cells(path, name),
        index=keys.store_index(path, name),
        unique=keys.store_unique(path, name),
        definition=definition,
        retain_s=retain_s,
        most=EXPIRED_AT_ONCE,
    )


def _of_table(keys: Keys, path: str, name: str, table: Table) -> dict[str, str | bytes]:
    """What every script is told of the table it works on."""
    return {
        "catalogue": keys.store(path),
        "cells": keys.store_cells(path, name),
        "index": keys.store_index(path, name),
        "name": name,
        "definition": table.definition,
    }


def _arguments(operation: Operation, table: Table, trace_id: str) -> dict[str, Argument]:
    match operation:
        case Insert():
            return {"packed": pack(table.row(operation.row) | _opened(operation.row, trace_id))}
        case Upsert():
            opened = _opened(operation.row, trace_id)
            packed = _assigned(table, operation.row, opened)
            return {"packed": packed, "nth": _nth(operation, table)}
        case Update():
            return {
                "conditions": pack_selection(table, operation.where),
                "assigned": _assigned(table, operation.set, {}),
            }
        case Delete():
            return {"conditions": pack_selection(table, operation.where)}
        case Settle():
            row = table.row({**operation.key, **operation.row})
            packed = pack(row | _opened(operation.row, trace_id))
            return {"packed": packed, "round": _round(operation, table)}
    raise TypeError(f"{type(operation).__name__} changes nothing")


def _opened(row: Row, trace_id: str) -> dict[str, bytes]:
    """What is kept beside a row that opens a round, which is over when its trace is."""
    return {} if row.get("fired") is None else {TRACE: trace_id.encode()}


def _assigned(table: Table, row: Row, beside: Mapping[str, bytes]) -> bytes:
    texts = table.row(row)
    return pack(
        {"row": {**texts, **beside}, "null": [column for column in row if column not in texts]}
    )


def _nth(operation: Upsert, table: Table) -> int:
    key = operation.key or (table.unique[0] if len(table.unique) == 1 else None)
    if key not in table.unique:
        raise InvalidOperation(operation="upsert", detail="key has to be a unique key of the table")
    if missing := [column for column in key if operation.row.get(column) is None]:
        raise InvalidOperation(operation="upsert", detail=f"the row has no {', '.join(missing)}")
    return table.unique.index(key) + 1


def _round(operation: Settle, table: Table) -> bytes:
    key = {column: table.text(column, value) for column, value in operation.key.items()}
    question = operation.question
    if question not in table.indexed:
        raise InvalidOperation(operation="settle", detail=f"settle needs an index on {question}")
    named = [b"%b:%d:%b" % (c.encode(), len(t or b""), t or b"") for c, t in sorted(key.items())]
    hidden = {ROUND: b"".join(named)}
    if operation.expects:
        hidden[EXPECTS] = pack(operation.expects)
    if operation.answers:
        hidden[ANSWERS] = pack(operation.answers)
    return pack(
        {
            "row": hidden,
            "match": {**key, "role": table.text("role", operation.guard.role)},
            "question": [question, key[question]],
            "unfired": table.text("fired", 0),
            "fired": table.text("fired", 1),
        }
    )
