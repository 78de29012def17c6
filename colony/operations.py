"""Operations: what can be asked of a store, and how it answers.

The arguments of every operation are closed: a misspelled one refuses the whole request, so that no
`{"operation": "delete", "wher": ...}` deletes everything.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from colony.body import Frozen, explain
from colony.errors import InvalidOperation, StoreError
from colony.schema import Identifier, Row, Table, UniqueKey

Scalar = str | int | float | bool | None

# What a body may be, and so the rows in it.
MAX_NEWEST_BYTES = 10 * 1024 * 1024

# How a value may stand to an operand for a condition to hold.
ANY = "<=>"
_ACCEPTS: Mapping[str, str] = {
    "eq": "=", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">=",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of one column, which holds where the value stands to any of `operands` as `accepts`
    says: a set of `<`, `=` and `>`. For NULL it holds if `or_null`.
    """

    column: str
    accepts: str
    operands: tuple[Scalar, ...] = ()
    or_null: bool = False


def conditions(where: Mapping[str, JsonValue]) -> tuple[Condition, ...]:
    """The conditions that a `where` object means, all of which a row has to meet.

    Raises ValueError where an operand is not one that the grammar allows.
    """
    return tuple(_condition(column, test) for column, test in where.items())


def _condition(column: str, written: JsonValue) -> Condition:
    if not isinstance(written, dict):
        return _compared(column, "eq", written)
    if len(written) != 1:
        raise ValueError(f"{column}: exactly one operator is needed")
    ((operator, operand),) = written.items()
    if operator == "is_null":
        if not isinstance(operand, bool):
            raise ValueError(f"{column}: is_null takes true or false")
        return Condition(column, "", or_null=True) if operand else Condition(column, ANY)
    if operator == "or_null":
        return _or_null(column, operand)
    return _compared(column, operator, operand)


def _or_null(column: str, operand: JsonValue) -> Condition:
    if isinstance(operand, dict) and operand.keys() & {"or_null", "is_null"}:
        raise ValueError(f"{column}: or_null takes one comparison or in")
    inner = _condition(column, operand)
    return Condition(column, inner.accepts, inner.operands, or_null=True)


def _compared(column: str, operator: str, operand: JsonValue) -> Condition:
    if operator == "in":
        if not isinstance(operand, list) or not operand:
            raise ValueError(f"{column}: in takes a list that is not empty")
        found = tuple(_scalar(column, item) for item in operand)
        return Condition(column, "=", tuple(item for item in found if item is not None))
    if operator not in _ACCEPTS:
        raise ValueError(f"{column}: no operator {operator!r}")
    value = _scalar(column, operand)
    # As in SQL, nothing compares with NULL: the condition never holds.
    return Condition(column, _ACCEPTS[operator], () if value is None else (value,))


def _scalar(column: str, value: JsonValue) -> Scalar:
    if isinstance(value, (list, dict)):
        raise ValueError(f"{column}: a string, a number, true, false or null is needed")
    return value


def _checked(where: Row) -> Row:
    conditions(where)
    return where


Where = Annotated[dict[Identifier, JsonValue], AfterValidator(_checked)]
FilledRow = Annotated[dict[Identifier, JsonValue], Field(min_length=1)]
Columns = Annotated[tuple[Identifier, ...], Field(min_length=1)]


class Operation(Frozen):
    """One thing asked of a store, about one table."""

    # Whether it can change anything.
    mutates: ClassVar[bool] = True

    operation: str
    table: Identifier


class Insert(Operation):
    """Add a row. Where a unique key is taken, refuse it or leave the table as it is."""

    operation: Literal["insert"] = "insert"
    row: FilledRow
    on_conflict: Literal["error", "ignore"] = "error"


class Upsert(Operation):
    """Add a row, or lay it over the row that has its unique key `key`.

    `key` may be left out where the table has only one.
    """

    operation: Literal["upsert"] = "upsert"
    row: FilledRow
    key: UniqueKey | None = None


class Order(Frozen):
    """A column to sort by, and the direction."""

    col: Identifier
    dir: Literal["asc", "desc"] = "asc"


class Select(Operation):
    """Read columns of the rows that match, in the order they were added unless told otherwise.

    `after` is the `seq` of the last row of the page before.
    """

    mutates: ClassVar[bool] = False

    operation: Literal["select"] = "select"
    columns: Columns
    where: Where = Field(default_factory=dict)
    order_by: tuple[Order, ...] = ()
    limit: int | None = Field(default=None, ge=1)
    distinct: bool = False
    after: int | None = Field(default=None, ge=0, lt=10**16)

    @model_validator(mode="after")
    def _sorts_by_what_it_tells_apart(self) -> "Select":
        hidden = {order.col for order in self.order_by} - set(self.columns)
        if self.distinct and hidden:
            raise ValueError(f"with distinct, order_by needs columns: {', '.join(sorted(hidden))}")
        return self


class Newest(Operation):
    """Read columns of the rows with one value in an indexed column that were added last, in the
    order they were added: at most `limit` rows, and whole ones of `max_bytes` together.

    The cost does not grow with the rows that are left out; `rows_affected` counts them as well.
    """

    mutates: ClassVar[bool] = False

    operation: Literal["newest"] = "newest"
    columns: Columns
    where: dict[Identifier, str | int | bool] = Field(min_length=1, max_length=1)
    limit: int = Field(ge=1, le=1000)
    max_bytes: int = Field(default=MAX_NEWEST_BYTES, ge=1, le=MAX_NEWEST_BYTES)


class Count(Operation):
    """Count the rows that match; the number is the text of the answer and its `rows_affected`."""

    mutates: ClassVar[bool] = False

    operation: Literal["count"] = "count"
    where: Where = Field(default_factory=dict)


class Update(Operation):
    """Set columns of the rows that match."""

    operation: Literal["update"] = "update"
    set: FilledRow
    where: Where = Field(default_factory=dict)


class Delete(Operation):
    """Remove the rows that match."""

    operation: Literal["delete"] = "delete"
    where: Where = Field(default_factory=dict)


class CreateTable(Operation, Table):
    """Make a table, unless there is one with this definition."""

    operation: Literal["create_table"] = "create_table"


class Guard(Frozen):
    """The row that is claimed for a complete round: of this role, its `fired` going from 0 to 1."""

    role: str
    fired: Literal[0] = 0


# Begins what is expected of a round and is no call. The id of a call never does.
MARK = "@"


class Settle(Operation):
    """Add a row of a round, and claim the round if that completes it, in one step.

    `key` names the round; its question is the `turn_id` in it, else its first column. The round is
    complete when it has `expects` and `answers` contain them all.
    """

    operation: Literal["settle"] = "settle"
    row: FilledRow
    key: Annotated[dict[Identifier, str | int | bool], Field(min_length=1)]
    expects: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    guard: Guard
    quiet_unless_won: bool = False

    @property
    def question(self) -> str:
        """The column that names the question a round belongs to."""
        return "turn_id" if "turn_id" in self.key else next(iter(self.key))

    @model_validator(mode="after")
    def _row_is_of_the_round(self) -> "Settle":
        for column, value in self.key.items():
            if self.row.get(column, value) != value:
                raise ValueError(f"row and key differ in {column}")
        return self


AnyOperation = Annotated[
    Insert | Upsert | Select | Newest | Count | Update | Delete | CreateTable | Settle,
    Field(discriminator="operation"),
]

_ADAPTER: TypeAdapter[
    Insert | Upsert | Select | Newest | Count | Update | Delete | CreateTable | Settle
] = TypeAdapter(AnyOperation)


def parse_operation(text: str) -> Operation:
    """The operation that the JSON `text` of a tool call asks for.

    Raises InvalidOperation where it asks for none; its `operation` is `error` where even that name
    cannot be read.
    """
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        raise InvalidOperation(operation=_named(text), detail=explain(error)) from None


def _named(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "error"
    name = value.get("operation") if isinstance(value, dict) else None
    return name if isinstance(name, str) and name in OPERATIONS else "error"


OPERATIONS = frozenset(
    ("insert", "upsert", "select", "newest", "count", "update", "delete", "create_table", "settle")
)

# Refusals of the request itself, apart from those of its content (meclaw, store errors).
_REQUEST_CODES = frozenset(("invalid_input", "query_timeout", "write_denied"))


@dataclass(frozen=True, slots=True)
class StoreReply:
    """What came of an operation.

    `rows` are the answer of a select or newest, and of the `settle` that won: the rows of its
    question.
    `missing` is how many results the round of a `settle` waits for, None while it is not known.
    """

    operation: str
    rows_affected: int = 0
    rows: Sequence[Row] | None = None
    missing: int | None = None
    error_code: str | None = None
    detail: str | None = None

    @classmethod
    def refused(cls, operation: str, error: StoreError) -> "StoreReply":
        """The answer to an operation that changed nothing because of `error`."""
        return cls(operation, error_code=error.code, detail=str(error))

    def untold(self, error: StoreError) -> "StoreReply":
        """The answer to the same operation, whose rows `error` keeps from being told."""
        return replace(self, rows=None, error_code=error.code, detail=str(error))

    @property
    def won(self) -> bool:
        """Whether this is the one reply that may go on with the round."""
        return self.operation == "settle" and self.rows_affected == 1

    @property
    def text(self) -> str:
        """The answer as the text of a tool result."""
        if self.error_code is not None:
            return json.dumps({"error": self.error_code, "message": self.detail})
        if self.operation == "count":
            return str(self.rows_affected)
        return json.dumps(self.rows, ensure_ascii=False)

    def hop(self) -> dict[str, JsonValue]:
        """The hop keys that tell what came of the operation."""
        hop: dict[str, JsonValue] = {"operation": self.operation}
        if self.error_code is not None:
            hop["error_code"] = self.error_code
        if self.error_code in _REQUEST_CODES:
            hop["finish_reason"] = "error"
        else:
            hop["rows_affected"] = self.rows_affected
        if self.missing is not None:
            hop["missing"] = self.missing
        return hop
