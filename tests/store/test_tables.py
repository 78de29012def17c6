"""Tables on a real server: every operation, its repeat, and its refusals."""

import asyncio
import itertools
import json
import random
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.exceptions import ResponseError

from colony.counts import Counts
from colony.errors import Fenced, ReceiptConflict
from colony.keys import Keys
from colony.link import Link
from colony.lua.packing import pack
from colony.lua.registry import scripts
from colony.operations import StoreReply, parse_operation
from colony.schema import Schema, Table
from colony.store.tables import StoreTables

KEYS = Keys("test")
TRACE = "trace-1"
THREAD = {
    "columns": {
        "turn_id": "text",
        "iter": "int",
        "role": "text",
        "call_id": "text",
        "turn": "text",
        "fired": "int",
    },
    "unique": [["turn_id", "iter", "role", "call_id"]],
}
KINDS = {"t": "text", "i": "int", "r": "real", "b": "bool", "j": "json"}
SCHEMA = Schema.model_validate({"tables": {"thread": THREAD, "kinds": KINDS}})

Handle = Callable[..., StoreTables]


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await link.command("HSET", KEYS.trace(TRACE), "state", "open")
    yield link
    await link.close()


@pytest.fixture
def handle(link: Link) -> Handle:
    """Makes the tables of one handle; a new envelope unless one is named."""
    fresh = itertools.count()

    def make(envelope: str | None = None, schema: Schema = SCHEMA) -> StoreTables:
        return StoreTables(
            link,
            KEYS,
            path="/memory",
            schema=schema,
            trace_id=TRACE,
            envelope_id=envelope or f"envelope-{next(fresh)}",
        )

    return make


async def do(tables: StoreTables, text: str = "", /, **arguments: Any) -> StoreReply:
    return await tables.execute(parse_operation(text or json.dumps(arguments)))


async def insert(tables: StoreTables, table: str = "kinds", /, **row: Any) -> StoreReply:
    return await do(tables, operation="insert", table=table, row=row)


async def select(tables: StoreTables, *columns: str, table: str = "kinds", **more: Any) -> Any:
    reply = await do(tables, operation="select", table=table, columns=columns, **more)
    assert reply.error_code is None, reply
    assert reply.rows_affected == len(reply.rows or ())
    return reply.rows


async def newest(tables: StoreTables, limit: int, **more: Any) -> StoreReply:
    asked = {"operation": "newest", "table": "thread", "columns": ["iter"], "limit": limit}
    return await do(tables, **{**asked, **more})


async def dump(link: Link) -> dict[bytes, bytes]:
    keys = await link.command("KEYS", "*")
    return {key: await link.command("DUMP", key) for key in keys}


async def test_values_of_every_type_come_back_as_they_went(handle: Handle) -> None:
    rows: list[dict[str, Any]] = [
        {"t": "a\0b ü", "i": 2**63 + 1, "r": -0.5, "b": True, "j": {"a": [], "b": {}}},
        {"t": "", "i": -(10**40), "r": 1e300, "b": False, "j": "text"},
        {"t": None, "i": None, "r": None, "b": None, "j": None},
    ]
    for row in rows:
        assert await insert(handle(), "kinds", **row) == StoreReply("insert", 1)

    assert await select(handle(), "t", "i", "r", "b", "j") == rows


async def test_a_select_reads_matches_sorts_cuts_and_pages(handle: Handle) -> None:
    for n in (3, 1, 2, 1, None):
        await insert(handle(), i=n, t=f"v{n}", b=0)

    assert [r["i"] for r in await select(handle(), "i")] == [3, 1, 2, 1, None]
    by: dict[str, Any] = {"order_by": [{"col": "i", "dir": "desc"}, {"col": "seq"}]}
    assert [r["seq"] for r in await select(handle(), "seq", **by)] == [1, 3, 2, 4, 5]
    assert await select(handle(), "t", limit=2) == [{"t": "v3"}, {"t": "v1"}]
    assert await select(handle(), "t", "seq", limit=1, after=2) == [{"t": "v2", "seq": 3}]
    assert await select(handle(), "seq", where={"i": 1}, after=2) == [{"seq": 4}]
    distinct = await select(handle(), "i", distinct=True, order_by=[{"col": "i", "dir": "asc"}])
    assert [r["i"] for r in distinct] == [None, 1, 2, 3]
    assert await select(handle(), "i", where={"seq": {"gte": 5}}) == [{"i": None}]


@pytest.mark.parametrize("turn_id", ["s", "s" * 41, "\0", "s\0", ""])
async def test_newest_reads_the_rows_that_were_added_last_in_their_order(
    handle: Handle, turn_id: str
) -> None:
    for n in range(7):
        await insert(handle(), "thread", turn_id=turn_id, iter=n)
        for other in (f"{turn_id}\0other", f"other\0{turn_id}", f"{turn_id}s", "other"):
            await insert(handle(), "thread", turn_id=other, iter=n)

    async def found(limit: int) -> list[Any]:
        reply = await newest(handle(), limit, where={"turn_id": turn_id})
        return [row["iter"] for row in reply.rows or ()]

    assert await found(3) == [4, 5, 6]
    assert await found(7) == await found(1000) == [0, 1, 2, 3, 4, 5, 6]


async def test_newest_tells_how_many_rows_there_are_beside_those_it_reads(handle: Handle) -> None:
    for n in range(5):
        await insert(handle(), "thread", turn_id="s", iter=n)

    reply = await newest(handle(), 2, where={"turn_id": "s"})
    none = await newest(handle(), 2, where={"turn_id": "t"})

    assert (reply.rows_affected, reply.rows) == (5, [{"iter": 3}, {"iter": 4}])
    assert (none.rows_affected, none.rows) == (0, [])


@pytest.mark.parametrize(
    ("max_bytes", "found"), [(1, []), (9, []), (10, ["d"]), (19, ["d"]), (20, ["c", "d"])]
)
async def test_newest_reads_whole_rows_as_far_as_they_fit(
    handle: Handle, max_bytes: int, found: list[str]
) -> None:
    """One that does not fit hides the older ones, however short they are."""
    for name, size in (("a", 1), ("b", 2_000_000), ("c", 9), ("d", 9)):
        await insert(handle(), "thread", turn_id="s", call_id=name, turn="x" * size)

    columns = ["call_id", "turn"]
    reply = await newest(handle(), 9, where={"turn_id": "s"}, columns=columns, max_bytes=max_bytes)

    assert [row["call_id"] for row in reply.rows or ()] == found
    assert reply.rows_affected == 4


async def test_newest_reads_a_row_without_a_value_and_its_number(handle: Handle) -> None:
    await insert(handle(), "thread", turn_id="s")

    reply = await newest(handle(), 9, where={"turn_id": "s"}, columns=["turn", "seq"])

    assert reply.rows == [{"turn": None, "seq": 1}]


async def test_newest_needs_an_indexed_column(handle: Handle) -> None:
    reply = await do(
        handle(), operation="newest", table="kinds", columns=["t"], where={"j": "x"}, limit=1
    )

    assert reply.error_code == "invalid_input"


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({}, [1, 2, 3, 4]),
        ({"i": 9}, [2]),
        ({"i": "9"}, [2]),
        ({"i": {"eq": 9}}, [2]),
        ({"i": {"neq": 9}}, [1, 3]),
        ({"i": {"lt": 9}}, [1]),
        ({"i": {"lte": 9}}, [1, 2]),
        ({"i": {"gt": -10}}, [2, 3]),
        ({"i": {"gte": 9}}, [2, 3]),
        ({"i": {"in": [10, -10, 77]}}, [1, 3]),
        ({"i": {"in": [10, 10, None]}}, [3]),
        ({"i": {"is_null": True}}, [4]),
        ({"i": {"is_null": False}}, [1, 2, 3]),
        ({"i": {"or_null": 9}}, [2, 4]),
        ({"i": {"or_null": {"gt": 9}}}, [3, 4]),
        ({"i": {"or_null": {"in": [9, 10]}}}, [2, 3, 4]),
        ({"i": None}, []),
        ({"i": {"neq": None}}, []),
        ({"t": "a"}, [1]),
        ({"t": {"gt": "a"}}, [2, 3]),
        ({"t": {"lt": "aa"}}, [1, 2]),
        ({"t": "x" * 100}, [3]),
        ({"t": "x" * 99}, []),
        ({"r": {"lt": 0}}, [1]),
        ({"b": True, "i": {"gt": 0}}, [2]),
        ({"j": {"in": ["s"]}}, [1]),
        ({"b": False, "i": 10}, [3]),
    ],
)
async def test_where_means_what_the_grammar_says(
    handle: Handle, where: dict[str, Any], found: list[int]
) -> None:
    await insert(handle(), t="a", i=-10, r=-1.5, b=False, j="s")
    await insert(handle(), t="a\0", i=9, r=0.0, b=True, j=["s"])
    await insert(handle(), t="x" * 100, i=10, r=2, b=False)
    await insert(handle(), b=True)

    rows = await select(handle(), "seq", where=where)
    counted = await do(handle(), operation="count", table="kinds", where=where)

    assert [row["seq"] for row in rows] == found
    assert counted.rows_affected == len(found)
    assert counted.text == str(len(found))


async def test_a_where_finds_what_sqlite_finds(handle: Handle) -> None:
    chooser = random.Random(11)
    numbers: list[Any] = [None, -(2**62), -3, -1, 0, 1, 2, 10, 2**62]
    texts: list[Any] = [None, "", "a", "a\0", "a\0b", "ab", "Ä", "é", "z", "\U0001f600", "q" * 41]
    other = sqlite3.connect(":memory:")
    other.execute("CREATE TABLE kinds (seq INTEGER PRIMARY KEY, i INTEGER, t TEXT)")
    schema = Schema.model_validate({"tables": {"kinds": {"i": "int", "t": "text"}}})
    for _ in range(60):
        row = {"i": chooser.choice(numbers), "t": chooser.choice(texts)}
        await insert(handle(schema=schema), "kinds", **row)
        other.execute("INSERT INTO kinds (i, t) VALUES (:i, :t)", row)

    for _ in range(150):
        where: dict[str, Any] = {}
        sql, bound = ["1"], list[Any]()
        for column, values in chooser.sample([("i", numbers), ("t", texts)], 2):
            name, operator = chooser.choice(
                [("eq", "="), ("neq", "<>"), ("lt", "<"), ("lte", "<="), ("gt", ">"), ("gte", ">="),
                 ("in", "in"), ("skip", "")]
            )  # fmt: skip
            if name == "skip":
                continue
            operand = chooser.sample(values[1:], 3) if name == "in" else chooser.choice(values)
            test = f"{column} {operator} (?, ?, ?)" if name == "in" else f"{column} {operator} ?"
            or_null = chooser.random() < 0.3
            where[column] = {"or_null": {name: operand}} if or_null else {name: operand}
            sql.append(f"({test} OR {column} IS NULL)" if or_null else test)
            bound += operand if name == "in" else [operand]
        wanted = other.execute(f"SELECT seq FROM kinds WHERE {' AND '.join(sql)}", bound)

        found = await select(handle(schema=schema), "seq", where=where)

        assert [(row["seq"],) for row in found] == wanted.fetchall(), where


async def test_update_and_delete_change_the_rows_that_match_and_their_index(handle: Handle) -> None:
    for n in range(4):
        await insert(handle(), i=n, t="old")

    where = {"i": {"gte": 2}}
    changed = await do(handle(), operation="update", table="kinds", set={"t": "new"}, where=where)
    gone = await do(handle(), operation="delete", table="kinds", where={"t": "old", "i": 0})

    assert (changed.rows_affected, gone.rows_affected) == (2, 1)
    assert await select(handle(), "i", where={"t": "new"}) == [{"i": 2}, {"i": 3}]
    assert await select(handle(), "i", where={"t": "old"}) == [{"i": 1}]
    await do(handle(), operation="update", table="kinds", set={"t": None})
    assert await select(handle(), "i", where={"t": {"is_null": True}, "i": 1}) == [{"i": 1}]


async def test_delete_of_everything_leaves_only_the_number_of_the_newest_row(
    handle: Handle, link: Link
) -> None:
    await insert(handle(), "thread", turn_id="q", iter=0, role="tool", call_id="c", fired=None)
    await do(handle(), operation="delete", table="thread")

    assert await link.command("HGETALL", KEYS.store_cells("/memory", "thread")) == [
        b"seq",
        f"{1:016}".encode(),
    ]
    assert await link.command("EXISTS", KEYS.store_index("/memory", "thread")) == 0
    assert await link.command("EXISTS", KEYS.store_unique("/memory", "thread")) == 0


async def test_a_taken_unique_key_refuses_the_row_or_absorbs_it(handle: Handle) -> None:
    row = {"turn_id": "q", "iter": 0, "role": "tool", "call_id": "c"}
    await insert(handle(), "thread", **row)

    refused = await insert(handle(), "thread", **row, turn="again")
    absorbed = await do(handle(), operation="insert", table="thread", row=row, on_conflict="ignore")
    other = await insert(handle(), "thread", **{**row, "call_id": None})
    another = await insert(handle(), "thread", **{**row, "call_id": None})

    assert (refused.error_code, refused.rows_affected) == ("constraint_violation", 0)
    assert "finish_reason" not in refused.hop()
    assert absorbed == StoreReply("insert", 0)
    assert other.rows_affected == another.rows_affected == 1  # NULLs differ, as in SQL
    assert await select(handle(), "turn", table="thread", where={"call_id": "c"}) == [
        {"turn": None}
    ]


async def test_an_update_moves_unique_keys_or_changes_nothing(handle: Handle) -> None:
    for call in ("a", "b"):
        await insert(handle(), "thread", turn_id="q", iter=0, role="tool", call_id=call)
    change = {"operation": "update", "table": "thread"}

    both = await do(handle(), **change, set={"call_id": "c"})
    taken = await do(handle(), **change, set={"call_id": "a"}, where={"call_id": "b"})
    same = await do(handle(), **change, set={"call_id": "a"}, where={"call_id": "a"})
    moved = await do(handle(), **change, set={"call_id": "z"}, where={"call_id": "a"})
    freed = await insert(handle(), "thread", turn_id="q", iter=0, role="tool", call_id="a")

    assert both.error_code == taken.error_code == "constraint_violation"
    assert (same.rows_affected, moved.rows_affected, freed.rows_affected) == (1, 1, 1)
    rows = await select(handle(), "call_id", table="thread", where={"turn_id": "q"})
    assert [row["call_id"] for row in rows] == ["z", "b", "a"]


async def test_an_upsert_adds_a_row_or_lays_itself_over_it(handle: Handle) -> None:
    key = {"turn_id": "q", "iter": 0, "role": "tool", "call_id": "c"}

    first = await do(
        handle(), operation="upsert", table="thread", row={**key, "turn": "1", "fired": 0}
    )
    second = await do(
        handle(), operation="upsert", table="thread", row={**key, "turn": "2", "fired": None}
    )
    third = await do(handle(), operation="upsert", table="thread", row=key)

    assert [r.rows_affected for r in (first, second, third)] == [1, 1, 1]
    assert await select(handle(), "seq", "turn", "fired", table="thread") == [
        {"seq": 1, "turn": "2", "fired": None}
    ]
    assert await select(handle(), "seq", table="thread", where={"fired": 0}) == []
    no_key = await do(handle(), operation="upsert", table="kinds", row={"i": 1})
    partial = await do(handle(), operation="upsert", table="thread", row={"turn_id": "q"})
    assert no_key.error_code == partial.error_code == "invalid_input"


async def test_an_upsert_that_would_take_the_key_of_a_third_row_is_refused(handle: Handle) -> None:
    table = {"columns": {"a": "text", "b": "text"}, "unique": [["a"], ["b"]]}
    schema = Schema.model_validate({"tables": {"pair": table}})
    for value in ("1", "2"):
        await insert(handle(schema=schema), "pair", a=value, b=value)

    row = {"a": "1", "b": "2"}
    reply = await do(handle(schema=schema), operation="upsert", table="pair", row=row, key=["a"])

    assert reply.error_code == "constraint_violation"
    assert await select(handle(schema=schema), "b", table="pair") == [{"b": "1"}, {"b": "2"}]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"operation": "insert", "table": "nope", "row": {"a": 1}}', "unknown_table"),
        ('{"operation": "insert", "table": "kinds", "row": {"a": 1}}', "unknown_column"),
        ('{"operation": "insert", "table": "kinds", "row": {"seq": 1}}', "unknown_column"),
        ('{"operation": "insert", "table": "kinds", "row": {"i": "x"}}', "type_mismatch"),
        ('{"operation": "insert", "table": "kinds", "row": {"b": 2}}', "type_mismatch"),
        ('{"operation": "insert", "table": "kinds", "row": {"j": NaN}}', "type_mismatch"),
        ('{"operation": "select", "table": "kinds", "columns": ["a"]}', "unknown_column"),
        ('{"operation": "delete", "table": "kinds", "where": {"a": 1}}', "unknown_column"),
        ('{"operation": "delete", "table": "kinds", "where": {"i": "x"}}', "type_mismatch"),
        ('{"operation": "update", "table": "kinds", "set": {"a": 1}}', "unknown_column"),
    ],
)
async def test_what_the_tables_cannot_do_is_refused_and_nothing_changes(
    handle: Handle, link: Link, text: str, code: str
) -> None:
    await insert(handle(), i=1)
    before = await dump(link)

    reply = await do(handle(), text)

    assert (reply.error_code, reply.rows_affected) == (code, 0)
    assert await dump(link) == before


async def test_a_repeated_handle_gets_the_first_answers(handle: Handle) -> None:
    await insert(handle(), "thread", turn_id="q", iter=0, role="assistant", fired=0)
    claim = {"set": {"fired": 1}, "where": {"turn_id": "q", "iter": 0, "fired": 0}}

    async def both(envelope: str) -> list[StoreReply]:
        tables = handle(envelope)
        return [
            await do(tables, operation="update", table="thread", **claim),
            await insert(tables, i=1),
            await do(tables, operation="delete", table="kinds", where={"i": 5}),
        ]

    winner, loser = await both("winner"), await both("loser")

    assert [reply.rows_affected for reply in winner] == [1, 1, 0]
    assert [reply.rows_affected for reply in loser] == [0, 1, 0]
    assert await both("winner") == winner
    assert await both("loser") == loser
    assert len(await select(handle(), "i")) == 2


async def test_a_repeat_with_other_content_is_a_receipt_conflict(
    handle: Handle, link: Link
) -> None:
    await insert(handle("one"), i=1)
    before = await dump(link)

    with pytest.raises(ReceiptConflict):
        await insert(handle("one"), i=2)

    assert await dump(link) == before


async def test_a_refused_operation_takes_an_ordinal(handle: Handle) -> None:
    async def both(value: Any) -> list[StoreReply]:
        tables = handle("one")
        return [await insert(tables, i=value), await insert(tables, i=2)]

    first = await both("no number")

    assert [reply.error_code for reply in first] == ["type_mismatch", None]
    assert await both("no number") == first
    assert len(await select(handle(), "i")) == 1


@pytest.mark.parametrize("end", ["cancelled", "failed", None])
async def test_a_trace_that_ended_or_is_gone_is_fenced(
    handle: Handle, link: Link, end: str | None
) -> None:
    await insert(handle("made"), "thread", turn_id="q")
    if end is None:
        await link.command("DEL", KEYS.trace(TRACE))
    else:
        await link.command("HSET", KEYS.trace(TRACE), "state", "ended", "cause", end)
    before = await dump(link)

    for text in (
        '{"operation": "insert", "table": "thread", "row": {"turn_id": "x"}}',
        '{"operation": "insert", "table": "kinds", "row": {"i": 1}}',
        '{"operation": "update", "table": "thread", "set": {"turn_id": "x"}}',
        '{"operation": "delete", "table": "thread"}',
        '{"operation": "create_table", "table": "more", "columns": {"a": "int"}}',
    ):
        with pytest.raises(Fenced):
            await do(handle("made"), text)

    assert await dump(link) == before


async def test_a_trace_that_completed_is_not_fenced(handle: Handle, link: Link) -> None:
    await link.command("HSET", KEYS.trace(TRACE), "state", "ended", "cause", "completed")

    assert (await insert(handle(), i=1)).rows_affected == 1


async def test_of_many_guarded_updates_one_wins(handle: Handle) -> None:
    await insert(handle(), "thread", turn_id="q", iter=0, role="assistant", fired=0)
    claim = {"set": {"fired": 1}, "where": {"turn_id": "q", "role": "assistant", "fired": 0}}

    replies = await asyncio.gather(
        *(do(handle(), operation="update", table="thread", **claim) for _ in range(50))
    )

    assert sorted(reply.rows_affected for reply in replies) == [0] * 49 + [1]


async def test_a_new_column_is_added_and_the_data_kept(handle: Handle) -> None:
    old = Schema.model_validate({"tables": {"notes": {"a": "text"}}})
    new = Schema.model_validate({"tables": {"notes": {"b": "int", "a": "text"}}})
    await insert(handle(schema=old), "notes", a="1")

    await insert(handle(schema=new), "notes", a="2", b=2)
    await insert(handle(schema=old), "notes", a="3")

    assert await select(handle(schema=new), "a", "b", table="notes") == [
        {"a": "1", "b": None},
        {"a": "2", "b": 2},
        {"a": "3", "b": None},
    ]
    assert await select(handle(schema=new), "a", table="notes", where={"b": 2}) == [{"a": "2"}]


async def test_a_retyped_column_or_another_unique_key_is_refused(handle: Handle) -> None:
    tables = [{"a": "text"}, {"a": "int"}, {"columns": {"a": "text"}, "unique": [["a"]]}]
    first, *others = (Schema.model_validate({"tables": {"notes": table}}) for table in tables)
    await insert(handle(schema=first), "notes", a="1")

    for schema in others:
        reply = await insert(handle(schema=schema), "notes", a="2")
        assert reply.error_code == "sql_error"


async def test_a_made_table_is_known_to_other_handles(handle: Handle) -> None:
    made = {"operation": "create_table", "table": "made", "columns": {"a": "int"}}

    assert await do(handle(), **made) == StoreReply("create_table", 0)
    assert await do(handle(), **made) == StoreReply("create_table", 0)
    assert (await insert(handle(), "made", a=1)).rows_affected == 1
    assert await select(handle(), "a", table="made") == [{"a": 1}]
    other = await do(handle(), **{**made, "columns": {"a": "text"}})
    assert other.error_code == "sql_error"


async def test_seeds_are_loaded_once_into_a_fresh_table(handle: Handle) -> None:
    value = {
        "tables": {"facts": {"columns": {"k": "text", "n": "int"}, "unique": [["k"]]}},
        "seeds": {"facts": [{"k": "a", "n": 1}, {"k": "b"}]},
    }
    schema = Schema.model_validate(value)

    await asyncio.gather(*(select(handle(schema=schema), "k", table="facts") for _ in range(8)))
    assert await select(handle(schema=schema), "k", "n", table="facts") == [
        {"k": "a", "n": 1},
        {"k": "b", "n": None},
    ]
    assert (await insert(handle(schema=schema), "facts", k="a")).error_code is not None
    await do(handle(schema=schema), operation="delete", table="facts")
    assert await select(handle(schema=schema), "k", table="facts") == []


async def test_rows_beyond_their_retention_leave_when_a_row_comes(
    handle: Handle, link: Link
) -> None:
    schema = Schema.model_validate(
        {"tables": {"notes": {"columns": {"a": "text"}, "retain_s": 60}}}
    )
    for value in "12":
        await insert(handle(schema=schema), "notes", a=value)
    cells = KEYS.store_cells("/memory", "notes")
    await link.command("HSET", cells, f"{1:016}:", "1000")

    await insert(handle(schema=schema), "notes", a="3")

    assert await select(handle(schema=schema), "a", table="notes") == [{"a": "2"}, {"a": "3"}]


async def settle(
    tables: StoreTables, role: str, call: str | None, iter: int = 0, turn_id: str = "q", **more: Any
) -> StoreReply:
    return await do(
        tables,
        operation="settle",
        table="thread",
        row={"role": role, "call_id": call or role, "fired": 0 if role == "assistant" else None},
        key={"turn_id": turn_id, "iter": iter},
        guard={"role": "assistant", "fired": 0},
        **more,
    )


async def test_settle_claims_a_round_when_its_last_result_is_there(handle: Handle) -> None:
    early = await settle(handle(), "tool", "b", answers=["b"])
    asked = await settle(handle(), "assistant", None, expects=["a", "b", "u"])
    user = await settle(handle(), "user", "u", answers=["u"])
    twice = await settle(handle(), "tool", "b", answers=["b"])
    won = await settle(handle("last"), "tool", "a", answers=["a"])
    late = await settle(handle(), "tool", "a", answers=["a"])

    assert [r.missing for r in (early, asked, user, twice, won, late)] == [None, 2, 1, 1, 0, 0]
    assert [r.won for r in (early, asked, user, twice, won, late)] == [*[False] * 4, True, False]
    assert won.hop() == {"operation": "settle", "rows_affected": 1, "missing": 0}
    assert [(r["seq"] if "seq" in r else r["call_id"]) for r in won.rows or ()] == [
        "b", "assistant", "u", "a",
    ]  # fmt: skip
    assert await select(handle(), "call_id", table="thread", where={"fired": 1}) == [
        {"call_id": "assistant"}
    ]
    assert late.text == "null"


async def test_a_row_that_comes_too_late_is_counted_and_changes_nothing(
    handle: Handle, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    counts = Counts(link, KEYS)
    row = {"turn_id": "q", "iter": 0, "role": "tool", "call_id": "a"}
    await settle(handle(), "assistant", None, expects=["a"])
    await settle(handle("last"), "tool", "a", answers=["a"])
    await settle(handle("last"), "tool", "a", answers=["a"])
    before = await select(handle(), *row, "turn", table="thread")
    assert (await counts.read())["late_results"] == 0

    await settle(handle("late"), "tool", "a", answers=["a"])
    known = {"row": {**row, "turn": "other"}, "on_conflict": "ignore"}
    await do(handle("known"), operation="insert", table="thread", **known)

    assert (await counts.read())["late_results"] == 2
    told = [line for line in caplog.messages if line.startswith("late ")]
    assert ["message=late" in told[0], "message=known" in told[1], len(told)] == [True, True, 2]
    assert await select(handle(), *row, "turn", table="thread") == before


async def test_what_a_row_says_comes_back_byte_for_byte_from_the_round_it_completes(
    handle: Handle,
) -> None:
    """Lua would round the number, and take the empty list for an object."""
    turn = '[{"n": 9007199254740993, "none": [], "text": "\u00e9\\ud83d"}, 1.0, 3.99]'
    await settle(handle(), "assistant", None, expects=["a"])

    await insert(handle(), "thread", turn_id="q", iter=0, role="tool", call_id="a", turn=turn)
    won = await settle(handle(), "tool", "a", answers=["a"])

    assert [row["turn"] for row in won.rows or ()] == [None, turn]


async def test_what_an_absorbed_row_answers_and_expects_is_added_to_what_it_did(
    handle: Handle,
) -> None:
    replies = [
        await settle(handle(), "assistant", None, expects=["a", "b"]),
        await settle(handle(), "tool", "x", answers=["a"]),
        await settle(handle(), "assistant", None, expects=["b", "c"]),
        await settle(handle(), "tool", "x", answers=["b", "a"]),
        await settle(handle(), "tool", "x", answers=["c"]),
    ]

    assert [(r.missing, r.won) for r in replies] == [
        (2, False), (1, False), (2, False), (1, False), (0, True),
    ]  # fmt: skip
    assert len(replies[-1].rows or ()) == 2


async def test_the_repeat_of_the_settle_that_won_gets_the_rows_it_got(handle: Handle) -> None:
    await settle(handle(), "assistant", None, expects=["a"])
    won = await settle(handle("last"), "tool", "a", answers=["a"])
    await insert(handle(), "thread", turn_id="q", iter=1, role="later", call_id="x")

    assert await settle(handle("last"), "tool", "a", answers=["a"]) == StoreReply(
        "settle", 1, [{**row, "fired": row["fired"] and 1} for row in won.rows or ()], missing=0
    )
    assert len(won.rows or ()) == 2


async def test_the_winner_holds_all_rounds_of_its_question_and_no_other(handle: Handle) -> None:
    await insert(handle(), "thread", turn_id="other", iter=0, role="user", call_id="u")
    for iter in range(3):
        await settle(handle(), "assistant", None, iter, expects=["a"])
        won = await settle(handle(), "tool", "a", iter, answers=["a"])

    assert [(row["turn_id"], row["iter"]) for row in won.rows or ()] == [
        ("q", iter) for iter in (0, 0, 1, 1, 2, 2)
    ]


async def test_a_round_whose_row_went_is_forgotten(handle: Handle) -> None:
    await settle(handle(), "assistant", None, expects=["a"])
    await do(handle(), operation="delete", table="thread")

    assert (await settle(handle(), "tool", "a", answers=["a"])).missing is None


async def test_many_racing_rounds_are_each_won_once(handle: Handle) -> None:
    chooser = random.Random(7)
    steps: list[tuple[int, str, str | None, dict[str, Any]]] = []
    for iter in range(60):
        calls = [f"c{n}" for n in range(chooser.randint(1, 4))]
        steps.append((iter, "assistant", None, {"expects": calls}))
        for call in calls * 2:
            steps.append((iter, "tool", call, {"answers": [call]}))
    chooser.shuffle(steps)

    replies = await asyncio.gather(
        *(settle(handle(), role, call, iter, **more) for iter, role, call, more in steps)
    )

    wins = [iter for (iter, *_), reply in zip(steps, replies, strict=True) if reply.won]
    assert sorted(wins) == list(range(60))


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_redelivered_a_round_has_one_winner_who_always_wins(
    handle: Handle, seed: int
) -> None:
    chooser = random.Random(seed)
    calls = [f"c{n}" for n in range(chooser.randint(1, 4))]
    steps: list[tuple[str, str, str | None, dict[str, Any]]] = [
        ("asked", "assistant", None, {"expects": calls}),
        ("asked again", "assistant", None, {"expects": calls}),
    ]
    for call in calls:
        steps += [
            (f"{call} {copy}", "tool", call, {"answers": [call]})
            for copy in range(chooser.randint(1, 3))
        ]
    schedule = steps + chooser.choices(steps, k=8)
    chooser.shuffle(schedule)

    won: dict[str, set[bool]] = {}
    for envelope, role, call_id, more in schedule:
        reply = await settle(handle(envelope), role, call_id, **more)
        won.setdefault(envelope, set()).add(reply.won)

    assert all(len(answers) == 1 for answers in won.values())
    assert sum(answers == {True} for answers in won.values()) == 1
    rows = await select(handle(), "call_id", table="thread", where={"turn_id": "q"})
    assert sorted(row["call_id"] for row in rows) == ["assistant", *calls]


async def test_settle_needs_an_index_on_the_question_and_the_columns_of_a_round(
    handle: Handle,
) -> None:
    unindexed = Schema.model_validate({"tables": {"thread": {**THREAD, "index": ["fired"]}}})

    assert (await settle(handle(schema=unindexed), "tool", "a")).error_code == "invalid_input"
    plain = await do(
        handle(),
        operation="settle",
        table="kinds",
        row={"t": "x"},
        key={"t": "x"},
        guard={"role": "assistant"},
    )
    assert plain.error_code == "unknown_column"


async def test_the_cost_of_a_question_does_not_grow_with_the_table(
    handle: Handle, link: Link
) -> None:
    async def cost(work: Any) -> int:
        await link.command("CONFIG", "RESETSTAT")
        await work
        lines = (await link.command("INFO", "commandstats")).decode().splitlines()
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)

    async def question(turn_id: str) -> list[int]:
        claim = {"turn_id": turn_id, "role": "assistant", "fired": 0}
        row = {"turn_id": turn_id, "iter": 0, "role": "assistant", "fired": 0}
        where = {"turn_id": turn_id}
        return [
            await cost(insert(handle(), "thread", **row)),
            await cost(select(handle(), "turn", table="thread", where=where)),
            await cost(newest(handle(), 3, where=where)),
            await cost(
                do(handle(), operation="update", table="thread", set={"fired": 1}, where=claim)
            ),
            await cost(settle(handle(), "tool", "a", turn_id=turn_id, answers=["a"])),
            await cost(do(handle(), operation="delete", table="thread", where=where)),
        ]

    await insert(handle(), "thread", turn_id="first")
    # Once before it counts, so that the server knows every script.
    await question("before")
    small = await question("small")
    for n in range(200):
        await insert(handle(), "thread", turn_id=f"other-{n}", iter=0, role="assistant", fired=0)

    assert await question("large") == small


async def test_store_operations_of_a_delivery_pass_a_full_server(
    handle: Handle, link: Link
) -> None:
    await insert(handle(), i=1)
    await link.command("CONFIG", "SET", "maxmemory", "1")
    try:
        inserted = await insert(handle(), i=2)
        found = await select(handle(), "i", where={"i": 2})
        settled = await settle(handle(), "assistant", None, expects=["a"])
        won = await settle(handle(), "tool", "a", answers=["a"])
        late = await settle(handle(), "tool", "a", answers=["a"])
    finally:
        await link.command("CONFIG", "SET", "maxmemory", "0")

    assert (inserted.rows_affected, found, settled.error_code) == (1, [{"i": 2}], None)
    assert (won.won, late.won, late.missing) == (True, False, 0)


async def test_a_definition_made_on_top_of_another_is_told_so(handle: Handle, link: Link) -> None:
    await insert(handle(), "thread", turn_id="q")
    twins = pack([{"turn_id": b"q", "iter": b"1", "role": b"r", "call_id": b"c"}] * 2)
    before = await dump(link)

    async def make(**other: bytes | str) -> Any:
        given = {**ARGUMENTS, "packed": pack([]), **other}
        wanted = scripts()["store_make"].arguments
        return await run(link, "store_make", keys("store_make"), [given[name] for name in wanted])

    assert await make(definition=Table(columns={"a": "int"}).definition) == [b"changed"]
    assert await make() == [b"made"]
    assert await make(name="fresh", packed=twins) == [b"taken", b"1"]
    assert await dump(link) == before


TABLE = Table.model_validate(THREAD)
ROW = pack({"turn_id": b"q", "iter": b"p0010", "role": b"tool", "call_id": b"a"})
WHERE = pack({"conditions": [], "scan": [[b"(\0\0", b"(\0\1"]]})
ARGUMENTS: dict[str, bytes | str | int] = {
    "operation": "e:1",
    "digest": "d",
    "name": "thread",
    "definition": TABLE.definition,
    "packed": ROW,
    "conditions": WHERE,
    "assigned": pack({"row": {"turn": b"x", "call_id": b"y"}, "null": ["fired"]}),
    "nth": 1,
    "round": pack(
        {
            "row": {"?round": b"r", "?expects": pack(["a"]), "?answers": pack(["a"])},
            "match": {"turn_id": b"q"},
            "question": ["turn_id", b"q"],
            "unfired": b"p0010",
            "fired": b"p0011",
        }
    ),
    "before": "",
    "columns": pack(["turn_id"]),
    "column": "turn_id",
    "value": "q",
    "range": pack([b"[turn_id\0q\0", b"(turn_id\0q\1"]),
    "limit": 0,
    "max_bytes": 99,
    "retain_s": 60,
    "most": 10,
}
NAMES = [name for name in scripts() if name.startswith("store_") or name == "settle"]


def arguments(name: str) -> list[bytes | str | int]:
    special: dict[tuple[str, str], Any] = {
        ("store_upsert", "packed"): pack({"row": {"turn_id": b"q", "iter": b"p0010", "role": b"x",
                                                  "call_id": b"z"}, "null": []}),
        ("store_make", "packed"): pack([]),
        ("store_make", "name"): "fresh",
        ("store_newest", "limit"): 2,
    }  # fmt: skip
    return [special.get((name, wanted), ARGUMENTS[wanted]) for wanted in scripts()[name].arguments]


def keys(name: str) -> list[str]:
    known = {
        "trace": KEYS.trace(TRACE),
        "receipts": KEYS.receipts(TRACE),
        "catalogue": KEYS.store("/memory"),
        "cells": KEYS.store_cells("/memory", "thread"),
        "index": KEYS.store_index("/memory", "thread"),
        "unique": KEYS.store_unique("/memory", "thread"),
    }
    return [known[wanted] for wanted in scripts()[name].keys]


async def run(link: Link, name: str, keys: list[str], arguments: list[Any]) -> Any:
    return await link.command("EVAL", scripts()[name].source, len(keys), *keys, *arguments)


@pytest.mark.parametrize("name", NAMES)
async def test_a_script_with_an_argument_missing_changes_nothing(
    handle: Handle, link: Link, name: str
) -> None:
    await insert(handle(), "thread", turn_id="q", iter=0, role="assistant", fired=0, call_id="b")
    before = await dump(link)
    all_keys, all_arguments = keys(name), arguments(name)

    for missing in range(len(all_arguments)):
        with pytest.raises(ResponseError):
            await run(link, name, all_keys, all_arguments[:missing] + all_arguments[missing + 1 :])
    for missing in range(len(all_keys)):
        with pytest.raises(ResponseError):
            await run(link, name, all_keys[:missing], all_arguments)

    assert await dump(link) == before
    answer = await run(link, name, all_keys, all_arguments)
    assert answer[0].decode() in scripts()[name].returns
    assert (await dump(link) == before) is (
        name in ("store_select", "store_newest", "store_expire")
    )


@pytest.mark.parametrize("name", NAMES)
async def test_a_script_with_a_key_of_the_wrong_type_changes_nothing(
    handle: Handle, link: Link, name: str
) -> None:
    await insert(handle(), "thread", turn_id="q", iter=0, role="assistant", fired=0, call_id="b")
    await link.command("SET", "wrong", "type")
    before = await dump(link)

    for position in range(len(keys(name))):
        wrong = keys(name)
        wrong[position] = "wrong"
        with pytest.raises(ResponseError):
            await run(link, name, wrong, arguments(name))

    assert await dump(link) == before


def test_every_script_with_a_where_has_the_same_one() -> None:
    texts = {name: scripts()[name].source.decode() for name in NAMES}
    blocks = {
        name: text[text.index("-- where:") : text.index("-- end of where")]
        for name, text in texts.items()
        if "-- where:" in text
    }

    assert sorted(blocks) == ["store_delete", "store_select", "store_update"]
    assert len(set(blocks.values())) == 1


@pytest.fixture
async def limited(link: Link, redis_url: str) -> AsyncIterator[Link]:
    """A connection of the user `limited`, who may do everything unless a test says otherwise."""
    await link.command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "+@all")
    address = urlsplit(redis_url)
    limited = Link(address._replace(netloc=f"limited:any@{address.netloc}").geturl())
    await limited.open()
    yield limited
    await limited.close()
    await link.command("ACL", "DELUSER", "limited")


OVERLAID = {"turn_id": b"q", "iter": b"p0010", "role": b"assistant", "call_id": b"b", "turn": b"x"}
# Each script as above, then with what takes it into another branch.
ACL_CASES: list[tuple[str, dict[str, bytes]]] = [
    *((name, {}) for name in NAMES),
    ("store_upsert", {"packed": pack({"row": OVERLAID, "null": ["fired"]})}),
    ("store_make", {"packed": pack([{"turn_id": b"q", "iter": b"p0010"}])}),
]


@pytest.mark.parametrize(("name", "given"), ACL_CASES)
async def test_a_script_whose_command_is_denied_changes_nothing(
    handle: Handle, link: Link, limited: Link, name: str, given: dict[str, bytes]
) -> None:
    used = {*re.findall(r"redis\.call\('(\w+)'", scripts()[name].source.decode())}
    wanted = scripts()[name].arguments
    all_arguments = [
        given.get(argument, usual) for argument, usual in zip(wanted, arguments(name), strict=True)
    ]
    denied = set()
    for command in sorted(used):
        await link.command("FLUSHALL")
        await link.command("HSET", KEYS.trace(TRACE), "state", "open")
        for call_id in "bc":
            row = {"turn_id": "q", "iter": 0, "role": "assistant", "fired": 0, "call_id": call_id}
            await insert(handle(), "thread", **row)
        # Old enough to expire.
        cells = KEYS.store_cells("/memory", "thread")
        await link.command("HSET", cells, f"{1:016}:", "1000", f"{2:016}:", "1000")
        before = await dump(link)
        await link.command("ACL", "SETUSER", "limited", "+@all", f"-{command.lower()}")
        try:
            await run(limited, name, keys(name), all_arguments)
        except ResponseError:
            denied.add(command)
            assert await dump(link) == before, command

    # What only another branch needs may be denied unnoticed.
    assert {"HSET", "HDEL", "ZADD", "ZREM"} & used <= denied
