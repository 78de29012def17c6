"""The store cell: one operation on its tables in, one result out."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from colony.body import Entry, explain
from colony.cell import QUICK, Cell
from colony.codec import encode_body
from colony.envelope import Emission, Envelope
from colony.errors import (
    BodyTooLarge,
    InvalidOperation,
    ResultTooLarge,
    StoreError,
    TopologyError,
)
from colony.host import Host
from colony.operations import Operation, Settle, StoreReply, parse_operation
from colony.paths import parent, within
from colony.schema import Row, Schema, Table, Tables
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec

_SEED, _LINES = "seed/", ".jsonl"
_LINE: TypeAdapter[Row] = TypeAdapter(Row)


class Store(Cell):
    """Keep tables, and do the operation that a tool call asks for.

    Only the first message of a body is read. What a user said behind it comes back behind the
    result, so that whoever asks can go on with it. The schema cannot be changed by a message.
    """

    default_concurrency: ClassVar[int] = QUICK

    class Params(Cell.Params):
        """What the tables are, and who may change them.

        An operation that outlives `query_timeout_ms` is answered with an error; whether it took
        effect is then open, and a repeat of the same envelope tells.
        """

        tables: Tables = Field(alias="schema")
        query_timeout_ms: int | None = Field(default=None, ge=1)
        write_surface: Literal["open", "internal"] = "open"
        # Accepted for trees written for meclaw; full-text search and aliases are not served.
        fts: JsonValue = None
        canonical: JsonValue = None

    params: Params

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """Each line of a seed that is no row of its table."""
        tables = cls.Params.model_validate(spec.params).tables
        for file, table in _seed_files(spec.files).items():
            if table not in tables:
                yield Flaw("seed_invalid", f"There is no table {table!r}.", file=file)
                continue
            for number, line in _lines(spec.files[file]):
                problem = _problem_of(line, tables[table])
                if problem is not None:
                    sentence = f"Line {number} is no row of {table!r}: {problem}."
                    yield Flaw("seed_invalid", sentence, (number - 1,), file=file)

    async def start(self, host: Host) -> None:
        """Read the schema, and the rows with which its new tables start."""
        try:
            self._schema = Schema(tables=self.params.tables, seeds=_seeds(host.spec.files))
        except ValidationError as error:
            raise TopologyError(detail=f"{host.spec.path}: {explain(error)}") from None

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Do the operation of the tool call; a refusal is a result as well."""
        started = time.monotonic()
        entry, *rest = envelope.body.messages or (None,)
        call = entry if isinstance(entry, Entry) else None
        said = [e for e in rest if isinstance(e, Entry) and e.origin == "user"]
        quiet = False
        try:
            operation = _read(call)
            reply = await self._do(operation, envelope, host)
            quiet = isinstance(operation, Settle) and operation.quiet_unless_won
        except InvalidOperation as error:
            reply = StoreReply.refused(str(error.facts["operation"]), error)
        if quiet and not reply.won and reply.error_code is None:
            return []
        answer = _sendable(reply, (call and call.id) or "", said)
        duration_ms = round((time.monotonic() - started) * 1000)
        return [answer.model_copy(update={"hop": {**answer.hop, "duration_ms": duration_ms}})]

    async def _do(self, operation: Operation, envelope: Envelope, host: Host) -> StoreReply:
        name = operation.operation
        if operation.mutates and not self._may_write(envelope, host):
            return StoreReply(name, error_code="write_denied", detail="not from this sender")
        timeout_ms = self.params.query_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms and timeout_ms / 1000):
                return await host.tables(self._schema).execute(operation)
        except TimeoutError:
            detail = f"it took longer than {timeout_ms} ms"
            return StoreReply(name, error_code="query_timeout", detail=detail)

    def _may_write(self, envelope: Envelope, host: Host) -> bool:
        contract = host.spec.contract
        surface = (contract and contract.write_surface) or self.params.write_surface
        scope = parent(host.spec.path)
        inside = envelope.sender.startswith("/") and within(envelope.sender, scope)
        return inside or surface == "open"


def _read(call: Entry | None) -> Operation:
    if call is None or call.type != "tool_call":
        raise InvalidOperation(operation="error", detail="the first message has to be a tool_call")
    return parse_operation(call.text or "")


def _sendable(reply: StoreReply, call_id: str, said: Sequence[Entry]) -> Emission:
    """The answer, or an error in its place where no body could hold it."""
    answer = _answer(reply, call_id, said)
    try:
        encode_body(answer.body)
    except BodyTooLarge as error:
        return _answer(reply.untold(ResultTooLarge(**error.facts)), call_id, said)
    return answer


def _answer(reply: StoreReply, call_id: str, said: Sequence[Entry]) -> Emission:
    result = Entry.result(call_id, reply.text, is_error=reply.error_code is not None)
    return Emission.of(result, *said, **reply.hop())


def _seeds(files: Mapping[str, str]) -> dict[str, tuple[Row, ...]]:
    return {
        table: tuple(_LINE.validate_json(line) for _, line in _lines(files[file]))
        for file, table in _seed_files(files).items()
    }


def _seed_files(files: Mapping[str, str]) -> dict[str, str]:
    """The table of each seed, by the name of its file."""
    return {
        name: name.removeprefix(_SEED).removesuffix(_LINES)
        for name in files
        if name.startswith(_SEED) and name.endswith(_LINES)
    }


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines: a string in a line may hold any other separator as it is.
    return ((n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip())


def _problem_of(line: str, table: Table) -> str | None:
    try:
        table.row(_LINE.validate_json(line))
    except ValidationError as error:
        return explain(error)
    except StoreError as error:
        return str(error)
    return None
