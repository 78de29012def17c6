"""Store: the tables of a store cell, changed by scripts, as the handle of one envelope sees them.

Whatever changes a row leaves a receipt in the same step, under the envelope and the ordinal of the
operation in its handle: a repeated handle gets the first answers again. A table is made when it is
first needed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from colony.counts import Counts
from colony.errors import (
    ConstraintViolation,
    Fenced,
    InvalidOperation,
    ReceiptConflict,
    ServerUnavailable,
    StoreError,
    TableConflict,
    UnknownTable,
)
from colony.keys import Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import Argument, Call, bind
from colony.operations import (
    Count,
    CreateTable,
    Delete,
    Insert,
    Newest,
    Operation,
    Select,
    Settle,
    StoreReply,
    Update,
    Upsert,
)
from colony.schema import ANSWERS, EXPECTS, ROUND, TRACE, Row, Schema, Table
from colony.selection import (
    StoredRow,
    arrange,
    fetched,
    indexed_under,
    pack,
    pack_selection,
    unpack_rows,
)

# How often a definition may change under an operation before it is given up.
_ATTEMPTS = 5
# How many rows leave at most with one that comes.
_EXPIRED_AT_ONCE = 64

_SCRIPTS = {
    Insert: "store_insert",
    Upsert: "store_upsert",
    Update: "store_update",
    Delete: "store_delete",
    Settle: "settle",
}

log = get_logger("colony.store")


class StoreTables:
    """The tables of the store at `path`, for one handle of one envelope.

    With `server`, nothing is asked of another one.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        *,
        path: str,
        schema: Schema,
        trace_id: str,
        envelope_id: str,
        server: str | None = None,
    ) -> None:
        self._link = link
        self._keys = keys
        self._path = path
        self._schema = schema
        self._trace_id = trace_id
        self._envelope_id = envelope_id
        self._server = server
        self._known: dict[str, Table] = {}
        self._expired: set[str] = set()
        self._ordinal = 0

    async def execute(self, operation: Operation) -> StoreReply:
        """Do `operation` in one step. A refusal is a reply with an error code, and changes nothing.

        Raises Fenced where the trace takes no more work, and ReceiptConflict where an
        earlier handle of this envelope did something else at this point.
        """
        # Before anything can fail, so that an ordinal means the same in every handle.
        if operation.mutates:
            self._ordinal += 1
        ordinal = self._ordinal
        try:
            return await self._perform(operation, ordinal)
        except ReceiptConflict:
            raise
        except StoreError as error:
            return StoreReply.refused(operation.operation, error)

    async def _perform(self, operation: Operation, ordinal: int) -> StoreReply:
        if isinstance(operation, CreateTable):
            await self._create(operation)
            return StoreReply("create_table")
        for _ in range(_ATTEMPTS):
            table = await self._table(operation.table)
            call = self._call(operation, table, ordinal)
            answer = await self._run(call)
            if answer[0] == b"receipt_conflict":
                raise ReceiptConflict(ordinal=ordinal, envelope_id=self._envelope_id)
            if answer[0] != b"unmade":
                await self._expire(operation, table)
                reply = _reply(operation, table, answer)
                if _late(operation, reply):
                    await self._tell_late(operation)
                return reply
            await self._make(operation.table)
        raise TableConflict(table=operation.table, detail="its definition keeps changing")

    async def _tell_late(self, operation: Operation) -> None:
        message, table = self._envelope_id, operation.table
        log.info("late", store=self._path, table=table, trace=self._trace_id, message=message)
        # A server that is full takes what drains and no count.
        with suppress(ServerUnavailable):
            await Counts(self._link, self._keys).add("late_results")

    def _call(self, operation: Operation, table: Table, ordinal: int) -> Call:
        name = operation.table
        if isinstance(operation, (Select, Count)):
            return selecting(self._keys, self._path, table, operation)
        if isinstance(operation, Newest):
            return _newest(self._keys, self._path, table, operation)
        script = _SCRIPTS[type(operation)]
        content = operation.model_dump_json().encode()
        return bind(
            script,
            trace=self._keys.trace(self._trace_id),
            receipts=self._keys.receipts(self._trace_id),
            catalogue=self._keys.store(self._path),
            cells=self._keys.store_cells(self._path, name),
            index=self._keys.store_index(self._path, name),
            unique=self._keys.store_unique(self._path, name),
            operation=f"{self._envelope_id}:{ordinal}",
            digest=hashlib.blake2b(content, digest_size=12).hexdigest(),
            name=name,
            definition=table.definition,
            **_arguments(operation, table, self._trace_id),
        )

    async def _table(self, name: str) -> Table:
        if name not in self._known:
            declared = self._schema.tables.get(name)
            stored = None if declared else await self._stored(name)
            if stored is None and declared is None:
                raise UnknownTable(table=name)
            self._known[name] = declared or Table.from_definition(stored or b"")
        return self._known[name]

    async def _make(self, name: str) -> None:
        """Make the table as declared, or learn how somebody else made it."""
        declared, stored = self._schema.tables.get(name), await self._stored(name)
        if stored is None and declared is None:
            raise UnknownTable(table=name)
        if stored is None and declared is not None:
            await self._define(name, b"", declared, self._schema.seeds.get(name, ()))
            return
        table = Table.from_definition(stored or b"")
        extended = table.extended(name, declared) if declared else table
        await self._define(name, stored or b"", extended, ())

    async def _create(self, operation: CreateTable) -> None:
        stored = await self._stored(operation.table)
        if stored is None and operation.table in self._schema.tables:
            await self._make(operation.table)
            stored = await self._stored(operation.table)
        wanted = Table(
            columns=operation.columns,
            unique=operation.unique,
            index=operation.index,
            retain_s=operation.retain_s,
        )
        if stored is None:
            await self._define(operation.table, b"", wanted, ())
            stored = await self._stored(operation.table)
        if stored != wanted.definition:
            raise TableConflict(table=operation.table, detail="its definition is another")

    async def _define(self, name: str, before: bytes, table: Table, seeds: Sequence[Row]) -> None:
        answer = await self._run(
            bind(
                "store_make",
                trace=self._keys.trace(self._trace_id),
                catalogue=self._keys.store(self._path),
                cells=self._keys.store_cells(self._path, name),
                index=self._keys.store_index(self._path, name),
                unique=self._keys.store_unique(self._path, name),
                name=name,
                before=before,
                definition=table.definition,
                packed=pack([table.row(row) for row in seeds]),
            )
        )
        if answer[0] == b"taken":
            raise ConstraintViolation(columns=_unique(table, answer[1]))
        self._known[name] = table

    async def _stored(self, name: str) -> bytes | None:
        catalogue = self._keys.store(self._path)
        found = await self._link.command("HGET", catalogue, name, server=self._server)
        return None if found is None else bytes(found)

    async def _expire(self, operation: Operation, table: Table) -> None:
        name = operation.table
        adds = isinstance(operation, (Insert, Upsert, Settle))
        if table.retain_s is None or not adds or name in self._expired:
            return
        self._expired.add(name)
        await self._run(_expiring(self._keys, self._path, name, table.definition, table.retain_s))

    async def _run(self, call: Call) -> Sequence[Any]:
        answer: Sequence[Any] = await self._link.run(call, server=self._server)
        if answer[0] == b"fenced":
            raise Fenced(trace_id=self._trace_id)
        return answer


async def expire_rows(link: Link, keys: Keys, path: str) -> int:
    """Remove the rows of the store at `path` that were kept long enough; returns how many.

    What is looked at is the rows that go and no others. A table keeps what its definition says,
    whether its cell is still there or not.
    """
    count = 0
    flat = await link.command("HGETALL", keys.store(path))
    for name, definition in zip(flat[::2], flat[1::2], strict=True):
        retain_s = Table.from_definition(definition).retain_s
        gone = _EXPIRED_AT_ONCE if retain_s else 0
        while retain_s and gone == _EXPIRED_AT_ONCE:
            call = _expiring(keys, path, name.decode(), bytes(definition), retain_s)
            gone = int((await link.run(call))[1])
            count += gone
    return count


def _expiring(keys: Keys, path: str, name: str, definition: bytes, retain_s: int) -> Call:
    return bind(
        "store_expire",
        cells=keys.store_cells(path, name),
        index=keys.store_index(path, name),
        unique=keys.store_unique(path, name),
        definition=definition,
        retain_s=retain_s,
        most=_EXPIRED_AT_ONCE,
    )


def selecting(keys: Keys, path: str, table: Table, operation: Select | Count) -> Call:
    """The call that reads what a select or count asks for; raises UnknownColumn or TypeMismatch."""
    columns, limit, after = [], 0, None
    if isinstance(operation, Select):
        columns = _read(table, operation)
        after = operation.after
        if not operation.order_by and not operation.distinct:
            limit = operation.limit or 0
    return bind(
        "store_select",
        catalogue=keys.store(path),
        cells=keys.store_cells(path, operation.table),
        index=keys.store_index(path, operation.table),
        name=operation.table,
        definition=table.definition,
        conditions=pack_selection(table, operation.where, after),
        columns=pack(columns),
        limit=limit,
    )


def _newest(keys: Keys, path: str, table: Table, operation: Newest) -> Call:
    ((column, value),) = operation.where.items()
    text = table.text(column, value)
    if column not in table.indexed:
        raise InvalidOperation(operation="newest", detail=f"newest needs an index on {column}")
    return bind(
        "store_newest",
        catalogue=keys.store(path),
        cells=keys.store_cells(path, operation.table),
        index=keys.store_index(path, operation.table),
        name=operation.table,
        definition=table.definition,
        column=column,
        value=text or b"",
        range=pack(indexed_under(column, text or b"")),
        columns=pack(fetched(table, operation.columns)),
        limit=operation.limit,
        max_bytes=operation.max_bytes,
    )


def _read(table: Table, operation: Select) -> list[str]:
    return fetched(table, [*operation.columns, *(order.col for order in operation.order_by)])


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


def _late(operation: Operation, reply: StoreReply) -> bool:
    """Whether the row changes nothing any more: it is known, or its round was claimed before."""
    if isinstance(operation, Settle):
        return reply.missing == 0 and not reply.won
    return isinstance(operation, Insert) and reply.rows_affected == 0


def _reply(operation: Operation, table: Table, answer: Sequence[Any]) -> StoreReply:
    token, count = answer[0], int(answer[1])
    if token == b"taken":
        if isinstance(operation, Insert) and operation.on_conflict == "ignore":
            return StoreReply("insert")
        raise ConstraintViolation(columns=_unique(table, answer[1]))
    if token == b"rows" and isinstance(operation, Select):
        return _selected(operation, table, unpack_rows(_read(table, operation), answer[2:]))
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


def _selected(operation: Select, table: Table, found: Sequence[StoredRow]) -> StoreReply:
    arranged = arrange(found, operation.columns, operation.order_by, operation.distinct)
    rows = [row.values(table, operation.columns) for row in arranged[: operation.limit]]
    return StoreReply("select", len(rows), rows)


def _unique(table: Table, nth: bytes) -> str:
    return ", ".join(table.unique[int(nth) - 1])
