"""The store cell on a real server."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.codec import MAX_BODY_BYTES, encode_body
from colony.envelope import Emission, Envelope, new_id
from colony.errors import TopologyError
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.link import Link
from colony.topology.model import CellSettings, CellSpec
from workers.store import Store

KEYS = Keys("test")
SCHEMA: dict[str, Any] = {
    "notes": {"columns": {"key": "text", "n": "int"}, "unique": [["key"]]},
    "thread": {"turn_id": "text", "iter": "int", "role": "text", "turn": "text", "fired": "int"},
}


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await link.command("HSET", KEYS.trace("trace"), "state", "open")
    yield link
    await link.close()


async def handle(
    link: Link,
    *entries: Entry,
    sender: str = "/agent/collector",
    files: dict[str, str] | None = None,
    path: str = "/agent/memory",
    **params: Any,
) -> list[Emission]:
    spec = CellSpec(
        path=path,
        cell=CellSettings(type="store"),
        params={"schema": SCHEMA, **params},
        files=files or {},
    )
    envelope = Envelope(
        id=new_id(), trace_id="trace", target=path, ttl=9, sender=sender, body=Body.of(*entries)
    )
    host = LiveHost(
        link=link, keys=KEYS, spec=spec, directory=None, tools=(), envelope=envelope, server=None
    )
    cell = Store(Store.Params.model_validate(spec.params))
    await cell.start(host)
    return [*await cell.handle(envelope, host)]


def call(**arguments: Any) -> Entry:
    return Entry.call("call-1", arguments)


def insert(key: str) -> Entry:
    return call(operation="insert", table="notes", row={"key": key})


async def test_a_call_is_answered_under_its_id(link: Link) -> None:
    await handle(link, insert("a"))

    (found,) = await handle(link, call(operation="select", table="notes", columns=["key", "n"]))

    (entry,) = found.body.entries
    assert (entry.origin, entry.type, entry.id) == ("tool", "tool_result", "call-1")
    assert json.loads(entry.text or "") == [{"key": "a", "n": None}]
    duration = found.hop["duration_ms"]
    assert found.hop == {"operation": "select", "rows_affected": 1, "duration_ms": duration}
    assert isinstance(duration, int)


async def test_what_changes_rows_answers_null(link: Link) -> None:
    (found,) = await handle(link, insert("a"))

    assert found.body.entries[0].text == "null"
    assert found.hop["rows_affected"] == 1


@pytest.mark.parametrize(
    ("entry", "operation", "call_id"),
    [
        (call(operation="delete", table="notes", wher={}), "delete", "call-1"),
        (call(operation="vacuum"), "error", "call-1"),
        (Entry(origin="assistant", type="tool_call", id="call-1", text="{"), "error", "call-1"),
        (Entry(origin="assistant", type="tool_call", id="call-1"), "error", "call-1"),
        (Entry.say("user", "hello"), "error", ""),
    ],
)
async def test_a_wrong_request_is_answered_and_changes_nothing(
    link: Link, entry: Entry, operation: str, call_id: str
) -> None:
    await handle(link, insert("a"))

    (found,) = await handle(link, entry)

    assert found.hop["operation"] == operation
    assert found.hop["error_code"] == "invalid_input"
    assert found.hop["finish_reason"] == "error"
    assert "rows_affected" not in found.hop
    assert (found.body.entries[0].id, found.body.entries[0].is_error) == (call_id, True)
    (kept,) = await handle(link, call(operation="count", table="notes"))
    assert kept.body.entries[0].text == "1"


async def test_only_the_first_message_is_read(link: Link) -> None:
    await handle(link, insert("a"), insert("b"))
    (empty,) = await handle(link)

    (count,) = await handle(link, call(operation="count", table="notes"))
    assert count.hop["rows_affected"] == 1
    assert empty.hop["error_code"] == "invalid_input"


@pytest.mark.parametrize("where", [{"key": "a"}, {"nothing": "a"}])
async def test_what_a_user_said_behind_the_call_comes_back_behind_the_result(
    link: Link, where: dict[str, str]
) -> None:
    await handle(link, insert("a"))
    asked = Entry(origin="user", type="text", text="why?", vendor={"x": {}})
    read = call(operation="newest", table="notes", columns=["key"], where=where, limit=9)

    (found,) = await handle(link, read, asked, insert("b"), Entry.say("assistant", "well"))

    result, *behind = found.body.entries
    assert result.is_error is (None if where == {"key": "a"} else True)
    assert behind == [asked]


async def test_a_refusal_of_the_tables_keeps_operation_and_rows(link: Link) -> None:
    await handle(link, insert("a"))

    (found,) = await handle(link, insert("a"))

    assert found.hop["error_code"] == "constraint_violation"
    assert found.hop["rows_affected"] == 0
    assert "finish_reason" not in found.hop
    assert found.body.entries[0].id == "call-1"


@pytest.mark.parametrize(
    ("sender", "path", "denied"),
    [
        ("/agent/collector", "/agent/memory", False),
        ("/other", "/agent/memory", True),
        ("@external", "/agent/memory", True),
        ("@external", "/memory", True),
        ("/other", "/memory", False),
    ],
)
async def test_an_internal_store_is_written_from_its_own_hive_only(
    link: Link, sender: str, path: str, denied: bool
) -> None:
    surface: dict[str, Any] = {"write_surface": "internal", "sender": sender, "path": path}

    (found,) = await handle(link, insert("a"), **surface)
    (count,) = await handle(link, call(operation="count", table="notes"), **surface)

    assert found.hop.get("error_code") == ("write_denied" if denied else None)
    assert count.hop["rows_affected"] == (0 if denied else 1)
    if denied:
        assert found.hop["finish_reason"] == "error"
        assert found.body.entries[0].id == "call-1"


async def test_an_operation_that_takes_too_long_is_a_query_timeout(link: Link) -> None:
    await link.open()
    await link.command("CLIENT", "PAUSE", 300, "ALL")

    (found,) = await handle(link, insert("a"), query_timeout_ms=20)

    assert found.hop["error_code"] == "query_timeout"
    assert found.hop["finish_reason"] == "error"
    assert found.body.entries[0].id == "call-1"


async def test_a_settle_that_did_not_win_is_quiet_where_it_is_told_to(link: Link) -> None:
    def settle(role: str, **more: Any) -> Entry:
        return call(
            operation="settle",
            table="thread",
            row={"role": role, "fired": 0 if role == "assistant" else None},
            key={"turn_id": "q", "iter": 0},
            guard={"role": "assistant", "fired": 0},
            quiet_unless_won=True,
            **more,
        )

    asked = await handle(link, settle("assistant", expects=["a"]))
    (won,) = await handle(link, settle("tool", answers=["a"]))
    wrong = await handle(link, settle("tool", answers="a"))

    assert asked == []
    assert (won.hop["operation"], won.hop["rows_affected"], won.hop["missing"]) == ("settle", 1, 0)
    assert [row["role"] for row in json.loads(won.body.entries[0].text or "")] == [
        "assistant",
        "tool",
    ]
    assert wrong[0].hop["error_code"] == "invalid_input"


async def test_seeds_of_the_cell_fill_a_fresh_table(link: Link) -> None:
    files = {"seed/notes.jsonl": '{"key": "a", "n": 1}\n\n{"key": "b"}\n', "tool.py": "pass"}

    for _ in range(2):
        (found,) = await handle(link, call(operation="count", table="notes"), files=files)

    assert found.body.entries[0].text == "2"


@pytest.mark.parametrize("seed", ["{", '{"nope": 1}', "[]"])
async def test_a_broken_seed_keeps_the_cell_from_starting(link: Link, seed: str) -> None:
    with pytest.raises(TopologyError):
        await handle(link, insert("a"), files={"seed/notes.jsonl": seed})


@pytest.mark.parametrize("over", [0, 1])
async def test_rows_that_no_body_holds_are_an_error_under_the_id_of_the_call(
    link: Link, over: int
) -> None:
    select = call(operation="select", table="thread", columns=["turn"])
    await handle(link, call(operation="insert", table="thread", row={"turn": ""}))
    (empty,) = await handle(link, select)
    # A long text has a length of five bytes in msgpack, a short one of one.
    size = MAX_BODY_BYTES - len(encode_body(empty.body)) - 4 + over
    await handle(link, call(operation="update", table="thread", set={"turn": "x" * size}))

    (found,) = await handle(link, select)

    (entry,) = found.body.entries
    assert (entry.id, found.hop["rows_affected"]) == ("call-1", 1)
    assert found.hop.get("error_code") == ("result_too_large" if over else None)
    assert (f"would have {MAX_BODY_BYTES + 1} bytes" in str(entry.text)) == bool(over)
    assert bool(entry.is_error) == bool(over)


async def test_a_round_that_is_won_by_more_than_a_body_holds_is_told_so(link: Link) -> None:
    text = "x" * (MAX_BODY_BYTES // 2)
    known = {"turn_id": "t-7", "iter": 0}
    first = {**known, "role": "tool", "turn": text}
    await handle(link, call(operation="insert", table="thread", row=first))
    last = {**known, "role": "assistant", "turn": text, "fired": 0}
    settle = call(
        operation="settle",
        table="thread",
        row=last,
        key=known,
        expects=["a"],
        answers=["a"],
        guard={"role": "assistant"},
        quiet_unless_won=True,
    )

    (found,) = await handle(link, settle)

    assert found.hop["error_code"] == "result_too_large"
    assert found.hop["rows_affected"] == 1
