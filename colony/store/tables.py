"""Store: the tables of a store cell, changed by scripts, as the handle of one envelope sees them.

Whatever changes a row leaves a receipt in the same step, under the envelope and the ordinal of the
operation in its handle: a repeated handle gets the first answers again. A table is made when it is
first needed.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from colony.counts import Counts
from colony.errors import (
    ConstraintViolation,
    Fenced,
    ReceiptConflict,
    ServerUnavailable,
    StoreError,
    TableConflict,
    UnknownTable,
)
from colony.keys import Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import Call
from colony.operations import (
    Count,
    CreateTable,
    Insert,
    Newest,
    Operation,
    Select,
    Settle,
    StoreReply,
    Upsert,
)
from colony.schema import Row, Schema, Table
from colony.store import calls
from colony.store.replies import is_late, read_reply, unique_columns

# How often a definition may change under an operation before it is given up.
_ATTEMPTS = 5

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
                reply = read_reply(operation, table, answer)
                if is_late(operation, reply):
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
        if isinstance(operation, (Select, Count)):
            return calls.selecting(self._keys, self._path, table, operation)
        if isinstance(operation, Newest):
            return calls.newest(self._keys, self._path, table, operation)
        mark = f"{self._envelope_id}:{ordinal}"
        return calls.changing(
            self._keys, self._path, table, operation, trace_id=self._trace_id, mark=mark
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
        call = calls.making(
            self._keys, self._path, name, table, before=before, seeds=seeds, trace_id=self._trace_id
        )
        answer = await self._run(call)
        if answer[0] == b"taken":
            raise ConstraintViolation(columns=unique_columns(table, answer[1]))
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
        call = calls.expiring(self._keys, self._path, name, table.definition, table.retain_s)
        await self._run(call)

    async def _run(self, call: Call) -> Sequence[Any]:
        answer: Sequence[Any] = await self._link.run(call, server=self._server)
        if answer[0] == b"fenced":
            raise Fenced(trace_id=self._trace_id)
        return answer
