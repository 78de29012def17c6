"""The hook that is shipped: which calls it refuses, and that all others pass as they came."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from colony.body import Entry
from tests.workers.agent.in_hand import arriving
from workers.agent.batches import BatchedCall
from workers.agent.hooks import Params, refuse_calls

OWN = Params(refuse={"keys": r"\.ssh/", "money": r"(?i)\bpay\b"})


def call(call_id: str, name: str, arguments: Any) -> Entry:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return BatchedCall(id=call_id, name=name, arguments=written, batch=0).entry()


def refused(*entries: Entry, own: Params = OWN) -> dict[str, str]:
    emission = refuse_calls(arriving(*entries, route="batch", batch=3), own)
    assert emission.hop == {"route": "batch", "batch": 3}
    assert [entry.id for entry in emission.body.entries] == [entry.id for entry in entries]
    passed = {entry.id: entry for entry in emission.body.each("tool_call")}
    assert all(passed.get(entry.id) in (entry, None) for entry in entries)
    results = [*emission.body.each("tool_result")]
    assert all(result.is_error for result in results)
    return {result.id or "": result.text or "" for result in results}


def test_calls_that_have_what_they_must_not_are_refused_and_the_others_pass() -> None:
    found = refused(
        call("a", "file", {"path": "/home/x/.ssh/id"}),
        call("b", "file", {"path": "/home/x/notes"}),
        call("c", "bash", {"command": "cat ~/.ssh/id # pay"}),
    )

    assert found == {"a": "its arguments have keys", "c": "its arguments have keys, money"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"deep": [{"er": "x/.ssh/y"}]},
        {"x/.ssh/y": 1},
        '{"path": "x\\u002f.ssh\\u002fy"}',
    ],
)
def test_arguments_are_searched_as_their_tool_reads_them(arguments: Any) -> None:
    assert [*refused(call("a", "file", arguments))] == ["a"]


def test_only_calls_of_the_named_tools_are_looked_at() -> None:
    own = Params(refuse={"any": "."}, tools=["bash"])

    assert [*refused(call("a", "file", {"p": "x"}), call("b", "bash", {"c": "x"}), own=own)] == [
        "b"
    ]


def test_call_that_cannot_be_read_is_refused() -> None:
    entry = Entry(origin="assistant", type="tool_call", id="a", text="[1]")

    assert refused(entry) == {"a": "the call cannot be read"}


def test_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ValidationError, match="bad is no regular expression"):
        Params(refuse={"good": "x", "bad": "("})
