"""Schema: the tables of a store, and the text under which their values are kept.

Scripts compare values as text and cannot parse them, so the text is canonical: equal values have
equal text, and the text of numbers sorts as the numbers do. NULL is the absence of a text.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from reprlib import repr
from typing import Annotated, Literal, Self

import msgpack
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from colony.body import Frozen
from colony.errors import StoreError, TableConflict, TypeMismatch, UnknownColumn

ColumnType = Literal["text", "int", "real", "bool", "json"]
Row = dict[str, JsonValue]

# Numbers the rows of every table that has no column of this name itself.
SEQ = "seq"
MAX_COLUMNS = 64
MAX_DIGITS = 999

# What is kept beside the rows of rounds. No identifier starts so: no operation can name them.
ROUND, EXPECTS, ANSWERS, TRACE = "?round", "?expects", "?answers", "?trace"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,999}")
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_SIGN = 1 << 63


def check_identifier(name: str) -> str:
    """`name`, if it can name a table or a column; raises ValueError otherwise."""
    reserved = name.startswith("sqlite_") or name.endswith("_fts")
    if reserved or not _IDENTIFIER.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a table or a column")
    return name


Identifier = Annotated[str, AfterValidator(check_identifier)]
UniqueKey = Annotated[tuple[Identifier, ...], Field(min_length=1, strict=False)]


class Table(Frozen):
    """The columns of a table, the sets of columns that are unique in it, and what is indexed.

    Without `index`, every text, int and bool column is. Rows older than `retain_s` seconds leave.
    """

    columns: dict[Identifier, ColumnType] = Field(min_length=1, max_length=MAX_COLUMNS)
    unique: Annotated[tuple[UniqueKey, ...], Field(strict=False)] = ()
    index: Annotated[tuple[Identifier, ...], Field(strict=False)] | None = None
    retain_s: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _names_only_its_columns(self) -> Self:
        named = {*(self.index or ()), *(column for key in self.unique for column in key)}
        if unknown := sorted(named - self.columns.keys()):
            raise ValueError(f"no such column: {', '.join(unknown)}")
        return self

    @cached_property
    def indexed(self) -> tuple[str, ...]:
        """The columns by whose values rows are found."""
        if self.index is not None:
            return self.index
        return tuple(name for name, kind in self.columns.items() if kind in ("text", "int", "bool"))

    @cached_property
    def definition(self) -> bytes:
        """The table as scripts read it and as the catalogue of its store keeps it."""
        # A table with `fired` can hold the rounds of a tool loop.
        hidden = (ROUND, EXPECTS, ANSWERS, TRACE) if "fired" in self.columns else ()
        value = {
            "columns": [*self.columns.items(), *((name, "text") for name in hidden)],
            "index": [*self.indexed, *hidden[:1]],
            "unique": self.unique,
            "retain_s": self.retain_s or 0,
        }
        return bytes(msgpack.packb(value))

    @classmethod
    def from_definition(cls, definition: bytes) -> Self:
        """The table that `definition` describes."""
        value = msgpack.unpackb(definition)
        return cls(
            columns={name: kind for name, kind in value["columns"] if not name.startswith("?")},
            unique=tuple(tuple(key) for key in value["unique"]),
            index=tuple(name for name in value["index"] if not name.startswith("?")),
            retain_s=value["retain_s"] or None,
        )

    def extended(self, name: str, declared: "Table") -> "Table":
        """This table with the columns that `declared` has beyond it; nothing is dropped or retyped.

        Raises TableConflict where rows that are there would have to be read in another way.
        """
        added = {c: kind for c, kind in declared.columns.items() if c not in self.columns}
        retyped = [c for c, kind in declared.columns.items() if self.columns.get(c, kind) != kind]
        late = set(declared.indexed) - set(self.indexed) - added.keys()
        if retyped:
            raise TableConflict(table=name, detail=f"the type of {retyped} cannot change")
        if late:
            raise TableConflict(table=name, detail=f"{sorted(late)} cannot be indexed any more")
        if set(declared.unique) != set(self.unique):
            raise TableConflict(table=name, detail="its unique keys cannot change")
        return Table(
            columns=self.columns | added,
            unique=self.unique,
            index=(*self.indexed, *(c for c in declared.indexed if c in added)),
            retain_s=declared.retain_s,
        )

    def text(self, column: str, value: JsonValue) -> bytes | None:
        """The text of `value` in `column`; raises UnknownColumn or TypeMismatch."""
        kind = self.kind(column)
        if value is None:
            return None
        try:
            if column == SEQ and SEQ not in self.columns:
                return seq_text(_integer(value))
            return _WRITERS[kind](value)
        except (ValueError, OverflowError) as error:
            raise TypeMismatch(column=column, expected=kind, detail=str(error)) from None

    def value(self, column: str, text: bytes | None) -> JsonValue:
        """The value whose text in `column` is `text`."""
        return None if text is None else _READERS[self.kind(column)](text)

    def kind(self, column: str) -> ColumnType:
        """The type of `column`; raises UnknownColumn where there is none."""
        if column in self.columns:
            return self.columns[column]
        if column == SEQ:
            return "int"
        raise UnknownColumn(column=column)

    def row(self, row: Mapping[str, JsonValue]) -> dict[str, bytes]:
        """The texts of a row to be written, NULLs left out."""
        for column in row:
            if column not in self.columns:
                raise UnknownColumn(column=column)
        texts = {column: self.text(column, value) for column, value in row.items()}
        return {column: text for column, text in texts.items() if text is not None}


def spelled_out(table: object) -> object:
    """A table as an object with `columns`, where it was written as `{column: type}`."""
    if isinstance(table, dict) and not isinstance(table.get("columns"), dict):
        return {"columns": table}
    return table


Tables = dict[Identifier, Annotated[Table, BeforeValidator(spelled_out)]]


class Schema(Frozen):
    """The tables of a store by name, and the rows with which a new table starts.

    A table is written as `{column: type}`, or as an object with `columns` and, where wanted,
    `unique`, `index` and `retain_s`.
    """

    tables: Tables = Field(default_factory=dict)
    seeds: dict[str, Annotated[tuple[Row, ...], Field(strict=False)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _seeds_have_a_table(self) -> Self:
        if unknown := sorted(self.seeds.keys() - self.tables.keys()):
            raise ValueError(f"a seed for no table: {', '.join(unknown)}")
        for name, rows in self.seeds.items():
            try:
                for row in rows:
                    self.tables[name].row(row)
            except StoreError as error:
                raise ValueError(f"the seed of {name}: {error}") from None
        return self


def seq_text(seq: int) -> bytes:
    """How a row is named by its number."""
    if not 0 <= seq < 10**16:
        raise ValueError("a number of a row has at most 16 digits")
    return b"%016d" % seq


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has half a surrogate pair") from None


def _text(value: JsonValue) -> bytes:
    if isinstance(value, bool):
        return _bool(value)
    return _encoded(value) if isinstance(value, str) else _json(value)


def _json(value: JsonValue) -> bytes:
    return _encoded(
        json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    )


def _integer(value: JsonValue) -> int:
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    raise ValueError(f"{repr(value)} is no integer")


def _int(value: JsonValue) -> bytes:
    number = _integer(value)
    if abs(number) >= 10**MAX_DIGITS:
        raise ValueError(f"an integer has at most {MAX_DIGITS} digits")
    digits = str(abs(number))
    if number < 0:
        return f"n{MAX_DIGITS - len(digits):03}{digits.translate(_COMPLEMENT)}".encode()
    return f"p{len(digits):03}{digits}".encode()


def _int_value(text: bytes) -> int:
    digits = text[4:].decode()
    return int(digits) if text[:1] == b"p" else -int(digits.translate(_COMPLEMENT))


def _real(value: JsonValue) -> bytes:
    if not isinstance(value, (int, float, str)):
        raise ValueError(f"{repr(value)} is no number")
    number = float(value) + 0.0  # no -0.0, which equals 0.0 and would have another text
    if not math.isfinite(number):
        raise ValueError(f"{repr(value)} is not finite")
    (bits,) = struct.unpack(">Q", struct.pack(">d", number))
    return f"{bits ^ (2**64 - 1) if bits & _SIGN else bits | _SIGN:016x}".encode()


def _real_value(text: bytes) -> float:
    bits = int(text, 16)
    bits = bits ^ _SIGN if bits & _SIGN else bits ^ (2**64 - 1)
    return float(struct.unpack(">d", struct.pack(">Q", bits))[0])


def _bool(value: JsonValue) -> bytes:
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return b"1" if value else b"0"
    raise ValueError(f"{repr(value)} is neither true nor false")


_WRITERS: Mapping[ColumnType, Callable[[JsonValue], bytes]] = {
    "text": _text,
    "int": _int,
    "real": _real,
    "bool": _bool,
    "json": _json,
}
_READERS: Mapping[ColumnType, Callable[[bytes], JsonValue]] = {
    "text": bytes.decode,
    "int": _int_value,
    "real": _real_value,
    "bool": lambda text: text == b"1",
    "json": json.loads,
}
