"""Requests as a model or a tree writes them, and the text of values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from colony.errors import InvalidOperation, TableConflict, TypeMismatch, UnknownColumn
from colony.operations import (
    Condition,
    CreateTable,
    Delete,
    Insert,
    Select,
    Settle,
    StoreReply,
    conditions,
    parse_operation,
)
from colony.schema import Schema, Table

ALL = Table.model_validate(
    {"columns": {"t": "text", "i": "int", "r": "real", "b": "bool", "j": "json"}}
)
SETTLE = {
    "operation": "settle",
    "table": "thread",
    "row": {"role": "tool"},
    "key": {"turn_id": "q", "iter": 0},
    "guard": {"role": "assistant", "fired": 0},
}


def parse(**arguments: Any) -> Any:
    return parse_operation(json.dumps(arguments))


def test_requests_become_operations() -> None:
    assert parse(operation="insert", table="t", row={"a": 2**70}) == Insert(
        table="t", row={"a": 2**70}
    )
    assert parse(operation="delete", table="t") == Delete(table="t")
    assert parse(operation="select", table="t", columns=["a"], limit=3) == Select(
        table="t", columns=("a",), limit=3
    )
    assert parse(operation="create_table", table="t", columns={"a": "int"}) == CreateTable(
        table="t", columns={"a": "int"}
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"operation": "delete", "table": "t", "wher": {"a": 1}}, "delete"),
        ({"operation": "delete"}, "delete"),
        ({"operation": "insert", "table": "t", "row": {}}, "insert"),
        ({"operation": "insert", "table": "t", "row": {"a": 1}, "on_conflict": "skip"}, "insert"),
        ({"operation": "insert", "table": "sqlite_x", "row": {"a": 1}}, "insert"),
        ({"operation": "insert", "table": "x_fts", "row": {"a": 1}}, "insert"),
        ({"operation": "insert", "table": "t:{x}", "row": {"a": 1}}, "insert"),
        ({"operation": "insert", "table": "t", "row": {"?round": 1}}, "insert"),
        ({"operation": "select", "table": "t", "columns": []}, "select"),
        ({"operation": "select", "table": "t", "columns": ["*"]}, "select"),
        ({"operation": "select", "table": "t", "columns": ["a"], "limit": 0}, "select"),
        ({"operation": "select", "table": "t", "columns": ["a"], "limit": "1"}, "select"),
        (
            {
                "operation": "select",
                "table": "t",
                "columns": ["a"],
                "distinct": True,
                "order_by": [{"col": "b", "dir": "asc"}],
            },
            "select",
        ),
        (
            {
                "operation": "select",
                "table": "t",
                "columns": ["a"],
                "order_by": [{"col": "a", "dir": "up"}],
            },
            "select",
        ),
        ({"operation": "update", "table": "t", "set": {}}, "update"),
        ({"operation": "create_table", "table": "t", "columns": {"a": "blob"}}, "create_table"),
        (
            {"operation": "create_table", "table": "t", "columns": {"a": "int"}, "index": ["b"]},
            "create_table",
        ),
        ({**SETTLE, "key": {}}, "settle"),
        ({**SETTLE, "guard": {"role": "assistant", "fired": 1}}, "settle"),
        ({**SETTLE, "row": {"iter": 1}}, "settle"),
        ({"operation": "drop", "table": "t"}, "error"),
        ({"operation": ["insert"]}, "error"),
        ({}, "error"),
    ],
)
def test_a_wrong_request_is_refused_under_its_name(arguments: Any, named: str) -> None:
    with pytest.raises(InvalidOperation) as refused:
        parse(**arguments)

    assert refused.value.facts["operation"] == named


@pytest.mark.parametrize("text", ["", "null", "[]", '"insert"', "{", "[" * 10_000])
def test_a_text_that_is_no_object_is_refused_as_error(text: str) -> None:
    with pytest.raises(InvalidOperation) as refused:
        parse_operation(text)

    assert refused.value.facts["operation"] == "error"


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        (5, Condition("c", "=", (5,))),
        (None, Condition("c", "=", ())),
        ({"neq": "x"}, Condition("c", "<>", ("x",))),
        ({"lte": 1.5}, Condition("c", "<=", (1.5,))),
        ({"in": [1, None, 2]}, Condition("c", "=", (1, 2))),
        ({"is_null": True}, Condition("c", "", (), True)),
        ({"is_null": False}, Condition("c", "<=>")),
        ({"or_null": 5}, Condition("c", "=", (5,), True)),
        ({"or_null": {"gt": 5}}, Condition("c", ">", (5,), True)),
        ({"or_null": {"in": [5]}}, Condition("c", "=", (5,), True)),
    ],
)
def test_a_where_means_conditions(where: Any, meant: Condition) -> None:
    assert conditions({"c": where}) == (meant,)


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"gt": 1, "lt": 5},
        {"like": "x"},
        {"eq": [1]},
        {"eq": {"a": 1}},
        [1, 2],
        {"in": []},
        {"in": 5},
        {"in": [[1]]},
        {"is_null": 1},
        {"or_null": {"is_null": True}},
        {"or_null": {"or_null": 1}},
        {"or_null": {"gt": 1, "lt": 5}},
    ],
)
def test_a_where_outside_the_grammar_is_refused(where: Any) -> None:
    with pytest.raises(InvalidOperation):
        parse(operation="delete", table="t", where={"c": where})


def test_the_question_of_a_round_is_its_turn_id_or_its_first_column() -> None:
    def settle(key: dict[str, Any]) -> Settle:
        found = parse(**{**SETTLE, "key": key})
        assert isinstance(found, Settle)
        return found

    assert settle({"iter": 0, "turn_id": "q"}).question == "turn_id"
    assert settle({"task": "x", "step": 1}).question == "task"


@given(st.lists(st.integers() | st.integers(-(10**60), 10**60)))
def test_the_text_of_integers_sorts_as_they_do(numbers: list[int]) -> None:
    texts = sorted(ALL.text("i", number) or b"" for number in numbers)

    assert [ALL.value("i", text) for text in texts] == sorted(numbers)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_the_text_of_reals_sorts_as_they_do(numbers: list[float]) -> None:
    texts = sorted(ALL.text("r", number) or b"" for number in numbers)

    assert [ALL.value("r", text) for text in texts] == sorted(numbers)
    assert ALL.text("r", -0.0) == ALL.text("r", 0)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_json_comes_back_and_null_is_the_absence_of_a_text(value: Any) -> None:
    assert ALL.value("j", ALL.text("j", value)) == value
    assert (ALL.text("j", value) is None) is (value is None)


def test_json_texts_are_alike_for_objects_that_are_equal() -> None:
    assert ALL.text("j", {"a": [], "b": {}}) == ALL.text("j", {"b": {}, "a": []})


@pytest.mark.parametrize(
    ("column", "written", "kept"),
    [
        ("t", 5, "5"),
        ("t", True, "1"),
        ("t", {"b": 1, "a": []}, '{"a":[],"b":1}'),
        ("i", True, 1),
        ("i", "-12", -12),
        ("i", 3.0, 3),
        ("r", "1.5", 1.5),
        ("r", 2, 2.0),
        ("b", 1, True),
        ("b", False, False),
    ],
)
def test_a_value_that_fits_its_column_is_converted(column: str, written: Any, kept: Any) -> None:
    found = ALL.value(column, ALL.text(column, written))

    assert (found, type(found)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("i", "x"),
        ("i", 1.5),
        ("i", []),
        ("i", 10**1000),
        ("r", "nan"),
        ("r", 10**400),
        ("r", {}),
        ("b", 2),
        ("b", "true"),
        ("t", "\ud800"),
        ("j", float("inf")),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_a_type_mismatch(column: str, value: Any) -> None:
    with pytest.raises(TypeMismatch):
        ALL.text(column, value)


def test_a_schema_is_written_short_or_in_full() -> None:
    full = {"columns": {"a": "int"}, "unique": [["a"]], "index": ["a"], "retain_s": 5}
    schema = Schema.model_validate({"tables": {"short": {"a": "int"}, "full": full}})

    assert schema.tables["short"] == Table(columns={"a": "int"})
    assert schema.tables["full"].unique == (("a",),)
    assert [Table.from_definition(t.definition).definition for t in schema.tables.values()] == [
        t.definition for t in schema.tables.values()
    ]


@pytest.mark.parametrize(
    "tables",
    [
        {"t": {}},
        {"t": {"a": "varchar"}},
        {"t": {"a b": "int"}},
        {"t:x": {"a": "int"}},
        {"t": {"columns": {"a": "int"}, "unique": [["b"]]}},
        {"t": {"columns": {"a": "int"}, "unique": [[]]}},
        {"t": {"columns": {"a": "int"}, "indx": ["a"]}},
        {"t": {f"c{n}": "int" for n in range(65)}},
    ],
)
def test_a_wrong_schema_is_refused(tables: Any) -> None:
    with pytest.raises(ValidationError):
        Schema.model_validate({"tables": tables})


@pytest.mark.parametrize("seeds", [{"u": []}, {"t": [{"b": 1}]}, {"t": [{"a": "x"}]}])
def test_a_seed_that_does_not_fit_is_refused(seeds: Any) -> None:
    with pytest.raises(ValidationError):
        Schema.model_validate({"tables": {"t": {"a": "int"}}, "seeds": seeds})


def test_a_table_grows_and_never_changes_what_it_has() -> None:
    table = Table(columns={"a": "int", "j": "json"})

    grown = table.extended("t", Table(columns={"b": "text", "a": "int"}))

    assert [*grown.columns] == ["a", "j", "b"]
    assert grown.indexed == ("a", "b")
    for other in (
        Table(columns={"a": "text"}),
        Table(columns={"a": "int"}, unique=(("a",),)),
        Table(columns={"j": "json"}, index=("j",)),
    ):
        with pytest.raises(TableConflict):
            table.extended("t", other)


def test_seq_is_read_where_no_column_has_that_name_and_never_written() -> None:
    assert ALL.kind("seq") == "int"
    with pytest.raises(UnknownColumn):
        ALL.row({"seq": 1})
    own = Table(columns={"seq": "text"})
    assert own.row({"seq": "x"}) == {"seq": b"x"}


@pytest.mark.parametrize(
    ("code", "hop"),
    [
        (None, {"operation": "update", "rows_affected": 0}),
        ("unknown_table", {"operation": "update", "error_code": "unknown_table",
                           "rows_affected": 0}),
        ("invalid_input", {"operation": "update", "error_code": "invalid_input",
                           "finish_reason": "error"}),
        ("query_timeout", {"operation": "update", "error_code": "query_timeout",
                           "finish_reason": "error"}),
    ],
)  # fmt: skip
def test_the_two_families_of_refusals_differ_in_their_hop(code: Any, hop: Any) -> None:
    assert StoreReply("update", error_code=code).hop() == hop
