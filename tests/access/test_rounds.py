"""Open rounds, read from threads of both protocols."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from colony.access.rounds import Round, Rounds
from colony.keys import Keys
from colony.link import Link
from colony.operations import parse_operation
from colony.schema import Schema
from colony.store.tables import StoreTables

KEYS = Keys("test")
COLUMNS = {"turn_id": "text", "iter": "int", "role": "text", "turn": "text", "fired": "int"}
SCHEMA = Schema.model_validate({"tables": {"thread": COLUMNS, "answers": {"text": "text"}}})


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await link.command("HSET", KEYS.trace("trace"), "state", "open")
    yield link
    await link.close()


class Thread:
    """Writes rows as a collector does."""

    def __init__(self, link: Link, path: str = "/memory", schema: Schema = SCHEMA) -> None:
        self._tables = StoreTables(
            link, KEYS, path=path, schema=schema, trace_id="trace", envelope_id=path
        )

    async def do(self, **arguments: Any) -> None:
        reply = await self._tables.execute(parse_operation(json.dumps(arguments)))
        assert reply.error_code is None

    async def insert(self, role: str, turn: Any, turn_id: str = "q", **more: Any) -> None:
        fired = 0 if role == "assistant" else None
        row = {"turn_id": turn_id, "iter": 0, "role": role, "fired": fired, **more}
        await self.do(operation="insert", table="thread", row={**row, "turn": json.dumps(turn)})


def calls(*ids: str) -> list[dict[str, str]]:
    return [{"origin": "assistant", "type": "tool_call", "id": i, "text": "{}"} for i in ids]


def result(call_id: str) -> dict[str, str]:
    return {"origin": "tool", "type": "tool_result", "id": call_id, "text": "x"}


async def test_a_round_is_open_until_it_is_claimed(link: Link) -> None:
    thread, rounds = Thread(link), Rounds(link, KEYS)
    await thread.insert("user", {"origin": "user", "type": "text", "text": "?"})
    await thread.insert(
        "assistant", [{"origin": "assistant", "type": "text", "text": "hm"}, *calls("a", "b")]
    )
    await thread.insert("tool", result("b"))
    await thread.insert("tool", result("a"), "other")

    (found,) = await rounds.open(["/memory"])

    assert 0 <= found.age_ms < 60_000
    assert found == Round(
        store="/memory",
        table="thread",
        key={"turn_id": "q", "iter": 0},
        expected=("a", "b"),
        received=("b",),
        missing=("a",),
        age_ms=found.age_ms,
    )
    assert found.to_json()["turn_id"] == "q"
    await thread.do(operation="update", table="thread", set={"fired": 1}, where={"fired": 0})
    assert await rounds.open(["/memory"]) == []


async def test_a_settled_round_is_read_from_what_settle_was_told(link: Link) -> None:
    thread = Thread(link)
    settle = {
        "operation": "settle",
        "table": "thread",
        "key": {"turn_id": "q", "iter": 0},
        "guard": {"role": "assistant", "fired": 0},
    }
    await thread.do(**settle, row={"role": "tool", "turn": "x"}, answers=["b"])
    await thread.do(
        **settle, row={"role": "assistant", "turn": "x", "fired": 0}, expects=["u", "a", "b"]
    )

    (found,) = await Rounds(link, KEYS).open(["/memory"])

    assert (found.expected, found.received) == (("u", "a", "b"), ("b",))
    assert found.missing == ("u", "a")


async def test_the_row_of_a_question_is_no_call_but_may_be_missing(link: Link) -> None:
    thread = Thread(link)
    settle = {
        "operation": "settle",
        "table": "thread",
        "key": {"turn_id": "q", "iter": 0},
        "guard": {"role": "assistant", "fired": 0},
    }
    asked = {"role": "assistant", "turn": "x", "fired": 0}
    await thread.do(**settle, row=asked, expects=["a", "@question"])

    (before,) = await Rounds(link, KEYS).open(["/memory"])
    await thread.do(**settle, row={"role": "user", "turn": "x"}, answers=["@question"])
    (after,) = await Rounds(link, KEYS).open(["/memory"])

    assert [(r.expected, r.received, r.missing) for r in (before, after)] == [
        (("a",), (), ("a", "question")),
        (("a",), (), ("a",)),
    ]


@pytest.mark.parametrize("operation", ["insert", "upsert", "settle"])
async def test_a_round_whose_trace_ended_or_is_gone_is_not_open(link: Link, operation: str) -> None:
    table = {"columns": COLUMNS, "unique": [["turn_id"]]}
    thread = Thread(link, schema=Schema.model_validate({"tables": {"thread": table}}))
    row = {"turn_id": "q", "iter": 0, "role": "assistant", "turn": "[]", "fired": 0}
    more = {"key": {"turn_id": "q", "iter": 0}, "guard": {"role": "assistant"}, "expects": ["a"]}
    given = more if operation == "settle" else {}
    await thread.do(operation=operation, table="thread", row=row, **given)
    rounds = Rounds(link, KEYS)

    found = {}
    for state in ("open", "quiet", "ended"):
        await link.command("HSET", KEYS.trace("trace"), "state", state)
        found[state] = len(await rounds.open(["/memory"]))
    await link.command("DEL", KEYS.trace("trace"))

    assert found == {"open": 1, "quiet": 1, "ended": 0}
    assert await rounds.open(["/memory"]) == []


async def test_rounds_of_all_stores_are_listed_the_oldest_first(link: Link) -> None:
    for path, turn_id, added in (("/one", "young", "2000"), ("/two", "old", "1000")):
        await Thread(link, path).insert("assistant", calls("a"), turn_id)
        cells = KEYS.store_cells(path, "thread")
        await link.command("HSET", cells, f"{1:016}:", added)
    rounds = Rounds(link, KEYS)

    found = await rounds.open(["/one", "/two", "/none"])

    assert [(r.store, r.key["turn_id"]) for r in found] == [("/two", "old"), ("/one", "young")]
    assert [r.store for r in await rounds.open(["/one", "/two"], turn_id="young")] == ["/one"]
    assert await rounds.open(["/none"]) == []


async def test_batches_of_an_iteration_are_rounds_of_their_own(link: Link) -> None:
    schema = Schema.model_validate({"tables": {"thread": {**COLUMNS, "batch": "int"}}})
    thread = Thread(link, schema=schema)
    for batch, call in enumerate("ab"):
        await thread.insert("assistant", calls(call), batch=batch)
    await thread.insert("tool", result("a"), batch=0)

    found = await Rounds(link, KEYS).open(["/memory"])

    assert {r.key["batch"]: r.missing for r in found} == {0: (), 1: ("b",)}


async def test_a_turn_that_nobody_can_read_has_no_ids(link: Link) -> None:
    thread = Thread(link)
    await thread.do(
        operation="insert",
        table="thread",
        row={"turn_id": "q", "iter": 0, "role": "assistant", "turn": "{", "fired": 0},
    )

    (found,) = await Rounds(link, KEYS).open(["/memory"])

    assert found.expected == found.missing == ()
