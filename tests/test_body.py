"""Bodies: what is one, what is none, and how they are read and written."""

import json
import math
from functools import reduce
from typing import Any

import pytest
from pydantic import ValidationError

from colony.body import MAX_NESTING, Body, BulkPointer, Entry, TextPointer
from colony.errors import BodyError

TEXT: dict[str, Any] = {"origin": "user", "type": "text", "text": "hello"}
FILE: dict[str, Any] = {"blob_id": "b-1", "mime_type": "text/plain", "size_bytes": 3}


def nested(levels: int) -> dict[str, Any]:
    innermost: dict[str, Any] = {}
    return reduce(lambda inner, _: {"x": inner}, range(levels - 1), innermost)


@pytest.mark.parametrize(
    "value",
    [
        {"messages": []},
        {"system": {}},
        {"attachments": []},
        {"messages": [], "params": {"k": [1, None, True]}, "query": "x"},
        {"system": {"tools": {"search": {"text": "{}"}}, "$replace": True}},
        {"messages": [TEXT]},
        {"messages": [{"origin": "assistant", "type": "text"}]},
        {"messages": [{**TEXT, "id": "m-1", "happened_at": "2026-01-01T00:00:00Z"}]},
        {"messages": [{**TEXT, "vendor": {"signature": "x", "deep": [{}]}}]},
        {"messages": [{"origin": "assistant", "type": "tool_call", "id": "c", "text": "{}"}]},
        {"messages": [{"origin": "tool", "type": "tool_result", "id": "c", "is_error": True}]},
        {"messages": [{"origin": "user", "type": "image"}, {"origin": "user", "type": "audio"}]},
        {"messages": [{"text_id": "b-1"}, TEXT, {"messages_id": "b-2"}]},
        {"attachments": [{**FILE, "filename": "a.txt", "sha256": "0" * 64}]},
    ],
)
def test_a_body_comes_back_as_it_was_written(value: dict[str, Any]) -> None:
    assert json.loads(json.dumps(Body.parse(value).to_json())) == value


@pytest.mark.parametrize(
    "value",
    [
        {},
        None,
        [],
        "text",
        {"foo": 1},
        {"messages": None},
        {"messages": [], "system": None},
        {"messages": {}},
        {"messages": "text"},
        {"messages": ["text"]},
        {"messages": [None]},
        {"messages": [{}]},
        {"messages": [{**TEXT, "txt": "typo"}]},
        {"messages": [{**TEXT, "origin": "bot"}]},
        {"messages": [{**TEXT, "type": "video"}]},
        {"messages": [{**TEXT, "text": 3}]},
        {"messages": [{"origin": "assistant", "type": "tool_call", "text": "{}"}]},
        {"messages": [{"origin": "tool", "type": "tool_result", "text": "42"}]},
        {"messages": [{"origin": "tool", "type": "tool_result", "id": 7}]},
        {"messages": [{**TEXT, "is_error": True}]},
        {"messages": [{"text_id": 1}]},
        {"messages": [{"text_id": "a", "messages_id": "b"}]},
        {"messages": [{"text_id": "a", "text": "b"}]},
        {"system": []},
        {"system": "be brief"},
        {"attachments": [{**FILE, "size_bytes": -1}]},
        {"attachments": [{**FILE, "size_bytes": True}]},
        {"attachments": [{**FILE, "size_bytes": 3.0}]},
        {"attachments": [{**FILE, "sha256": "0" * 63}]},
        {"attachments": [{**FILE, "sha256": "A" * 64}]},
        {"attachments": [{**FILE, "path": "/etc"}]},
        {"attachments": [{"blob_id": "b-1", "mime_type": "text/plain"}]},
        {"messages": [], "x": {1: 2}},
        {"messages": [], 1: 2},
        {"messages": [], "x": b"bytes"},
        {"messages": [], "x": (1, 2)},
        {"messages": [], "x": {1, 2}},
        {"messages": [], "x": object()},
    ],
)
def test_what_is_no_body_is_refused(value: object) -> None:
    with pytest.raises(BodyError) as caught:
        Body.parse(value)

    assert caught.value.code == "invalid_ubf_body"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("slot", ["system", "x"])
def test_a_number_that_json_does_not_have_is_refused(slot: str, number: float) -> None:
    with pytest.raises(BodyError, match="finite"):
        Body.parse({"messages": [], slot: {"deep": [number]}})


def test_every_fault_of_a_body_is_named_by_its_place() -> None:
    with pytest.raises(BodyError) as caught:
        Body.parse({"messages": [TEXT, {**TEXT, "origin": "bot"}], "attachments": [{}]})

    assert "messages.1" in str(caught.value)
    assert "attachments.0" in str(caught.value)


def test_nesting_is_bounded_at_64_levels_below_the_body() -> None:
    Body.parse({"messages": [], "x": nested(MAX_NESTING)})

    with pytest.raises(BodyError, match="nested deeper than 64"):
        Body.parse({"messages": [], "x": nested(MAX_NESTING + 1)})


def test_nesting_without_end_is_refused_and_not_a_recursion_error() -> None:
    with pytest.raises(BodyError, match="nested"):
        Body.parse({"messages": [], "x": nested(100_000)})


def test_a_slot_may_have_any_name() -> None:
    value = {"messages": [], "to_json": 1, "model_config": 2, "__class__": 3, "": 4, "header": 5}

    assert Body.parse(value).to_json() == {**value, "messages": ()}


def test_a_body_and_its_entries_cannot_be_changed() -> None:
    body = Body.of(Entry.say("user", "hello"))

    with pytest.raises(ValidationError):
        body.messages = ()  # type: ignore[misc]
    with pytest.raises(ValidationError):
        body.entries[0].text = "bye"  # type: ignore[misc]


def test_pointers_are_no_entries() -> None:
    body = Body.parse({"messages": [{"text_id": "b-1"}, TEXT, {"messages_id": "b-2"}]})

    assert [entry.text for entry in body.entries] == ["hello"]
    assert body.messages is not None
    assert isinstance(body.messages[0], TextPointer)
    assert isinstance(body.messages[2], BulkPointer)


def test_first_and_last_look_at_the_texts_of_one_origin() -> None:
    body = Body.of(
        Entry.call("c-1", {"q": 1}),
        Entry.say("user", "one"),
        Entry.say("assistant", "two"),
        Entry.say("user", "three"),
        Entry.result("c-1", "four"),
    )

    assert body.first("user") == Entry.say("user", "one")
    assert body.last("user") == Entry.say("user", "three")
    assert body.first("tool") is None
    assert [entry.id for entry in body.each("tool_call")] == ["c-1"]
    assert [entry.id for entry in body.each("tool_result", "user")] == []


def test_a_body_without_messages_has_no_entries() -> None:
    assert Body.parse({"system": {}}).entries == ()


def test_a_call_holds_the_bare_argument_object() -> None:
    call = Entry.call("c-1", {"query": "x", "n": 2**60})

    assert json.loads(call.text or "") == {"query": "x", "n": 2**60}
    assert (call.origin, call.type, call.id) == ("assistant", "tool_call", "c-1")


def test_a_result_says_so_only_where_it_is_an_error() -> None:
    assert "is_error" not in Entry.result("c-1", "42").to_json()
    assert Entry.result("c-1", "no", is_error=True).to_json()["is_error"] is True
