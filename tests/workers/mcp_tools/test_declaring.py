"""Names, params and flaws: what can be said of a server before it is asked."""

import itertools
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import Tool
from pydantic import ValidationError

from colony.errors import ConfigError
from colony.testing.host import RecordingHost
from colony.topology.expressions import Expression, Verdict
from workers.mcp_tools import Mcp
from workers.mcp_tools.naming import declarations, declared_name, prefix_of

LETTERS = re.compile(r"[A-Za-z0-9_-]{1,64}")


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_name_is_one_that_providers_take_and_stands_for_one_tool(one: str, two: str) -> None:
    names = [declared_name("server", tool) for tool in (one, two)]

    assert all(LETTERS.fullmatch(name) and name.startswith("server__") for name in names)
    assert (names[0] == names[1]) == (one == two)


def test_long_names_that_begin_alike_stay_apart() -> None:
    one, two = (declared_name("server", "x" * 100 + end) for end in "ab")

    assert one != two
    assert len(one) == len(two) == 64


@pytest.mark.parametrize(
    ("path", "prefix"),
    [("/git", "git"), ("/a/time-2", "time-2"), ("/a.b", "a_b"), ("/a__b", "a_b"), ("/Ü", "mcp")],
)
def test_the_prefix_is_the_last_segment_of_the_path(path: str, prefix: str) -> None:
    assert prefix_of(path) == prefix


PROBLEMS = [
    ({"type": "object", "properties": 7}, "no JSON Schema"),
    ({"type": "object", "description": "x" * 70_000}, "more than 65536 characters"),
]


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"anyOf": [{"properties": {"a": schema}}]}
    return schema


PROBLEMS += [(nested(200), "its schema nests too deep")]


def listed(name: str, schema: dict[str, Any] | None = None, **more: Any) -> Tool:
    return Tool(name=name, input_schema=schema or {"type": "object"}, **more)


def declare(*tools: Tool) -> tuple[dict[str, str], list[Any]]:
    host = RecordingHost.of("mcp")
    found = declarations(tools, "s", trust_hints=False, log=host.log)
    return {name: own for name, (own, _) in found.items()}, [*host.logged]


@pytest.mark.parametrize(("schema", "problem"), PROBLEMS)
def test_a_tool_that_cannot_be_declared_is_left_out(schema: dict[str, Any], problem: str) -> None:
    found, told = declare(listed("bad", schema), listed("good"))

    assert found == {"s__good": "good"}
    assert problem in told[0]["detail"]


def test_of_tools_without_end_no_more_are_looked_at_than_are_offered() -> None:
    listing = (listed(f"t{number}") for number in itertools.count())

    found = declarations(listing, "s", trust_hints=False, log=RecordingHost.of("mcp").log)

    assert len(found) == 128
    assert next(listing).name == "t129"


def test_of_too_many_tools_the_first_are_offered() -> None:
    found, told = declare(*(listed(f"t{number}") for number in range(200)))

    assert [*found.values()] == [f"t{number}" for number in range(128)]
    assert told[0]["event"] == "mcp_tools_left_out"


def test_a_host_without_the_sdk_knows_what_such_a_cell_is() -> None:
    program = "import sys; sys.modules.update(mcp=None, mcp_types=None); import workers.mcp_tools"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("git__log", Verdict.TRUE), ("git", Verdict.FALSE), ("gitx__log", Verdict.FALSE)],
)
def test_an_edge_takes_every_tool_of_a_server_by_its_prefix(name: str, verdict: Verdict) -> None:
    edge = Expression.parse("has(hop.tool_name) && hop.tool_name.startsWith('git__')")

    assert edge.condition({}, {"tool_name": name}) is verdict


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({}, "exactly one of command and url"),
        ({"command": ["x"], "url": "http://h/mcp"}, "exactly one of command and url"),
        ({"url": "ftp://h"}, "url is not one of http or https"),
        ({"url": "http://h", "env": {"A": "b"}}, "env and directory belong to a command"),
        ({"command": ["x"], "token": "t"}, "headers and token belong to a url"),
        ({"command": ["x"], "name": "a__b"}, "name must not hold __"),
        ({"command": ["x"], "name": "a b"}, "String should match pattern"),
        ({"command": ["x"], "unheard_of": 1}, "Extra inputs are not permitted"),
    ],
)
def test_params_that_name_no_server_are_refused(params: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Mcp.Params.model_validate(params)


def test_secrets_are_not_shown() -> None:
    params = {"url": "http://h", "token": "t-1", "headers": {"X-Key": "k-1"}}

    shown = repr(Mcp.Params.model_validate(params))

    assert "t-1" not in shown
    assert "k-1" not in shown


def test_without_the_extra_there_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.mcp_tools.cell.find_spec", lambda name: None)
    spec = RecordingHost.of("mcp", {"command": ["x"]}).spec

    [flaw] = Mcp.flaws(spec)

    assert flaw.code == "extra_missing"
    assert "pip install -e '.[mcp]'" in flaw.sentence


async def test_without_the_extra_the_cell_is_not_hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.mcp_tools.cell.find_spec", lambda name: None)
    host = RecordingHost.of("mcp", {"command": ["x"]})

    with pytest.raises(ConfigError, match="the extra is not installed here"):
        await Mcp(Mcp.Params.model_validate(host.spec.params)).start(host)


def test_with_the_extra_there_is_none() -> None:
    assert [*Mcp.flaws(RecordingHost.of("mcp", {"command": ["x"]}).spec)] == []
