"""docs/http.md says what the interface has: every route, parameter and code, and no other."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from colony.access import Access
from colony.access.bulk import Tally
from colony.api import events, letters, messages, reads
from colony.api.app import make_app
from colony.api.problems import _OF_STATUS, _STATUS
from colony.api.requests import Query
from colony.api.v1 import runs, sessions, shapes
from colony.engine import Engine
from colony.principals import Principals

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text()
AGENTS = (ROOT / "docs" / "agents-http.md").read_text()


async def test_every_route_is_documented_and_no_other(access: Access) -> None:
    served = set()
    for route in make_app(Engine(access), principals=Principals()).routes:
        methods = getattr(route, "methods", None) or set()
        path = re.sub(r":path", "", getattr(route, "path", ""))
        served |= {(method, path) for method in methods - {"HEAD"}}

    written = set()
    for code in re.findall(r"`((?:GET|POST|DELETE) /[^`?]*)", PAGE + AGENTS):
        method, path = code.split(maxsplit=1)
        written.add((method, path.strip()))
    written |= {("GET", path) for path in re.findall(r", `(/[^`]*)`", PAGE + AGENTS)}
    assert written == served


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("registry", reads.RegistryQuery),
        ("graph", reads.GraphQuery),
        ("trace", reads.TraceQuery),
        ("traces", reads.TracesQuery),
        ("messages", reads.MessagesQuery),
        ("threads/{question}/request", reads.RequestQuery),
        ("documents/{handle}", reads.DocumentQuery),
        ("dead_letters", letters.LettersQuery),
        ("events", events.EventsQuery),
    ],
)
def test_every_parameter_is_documented_and_no_other(path: str, query: type[Query]) -> None:
    [row] = re.findall(rf"^\| `GET /colony/{path}` \| ([^|]*) \|", PAGE, re.MULTILINE)

    written = set(re.findall(r"[a-z_]+", re.sub(r"\(.*?\)|\bwith\b", "", row)))
    assert written == set(query.model_fields)


def test_every_parameter_and_key_of_a_bulk_is_documented_and_no_other() -> None:
    section = PAGE.partition("## Dead letters")[2].partition("\n## ")[0]
    beyond = letters.BulkQuery.model_fields.keys() - letters.LettersQuery.model_fields.keys()
    answered = {key for verb in ("dropped", "replayed") for key in Tally(verb, True).to_json()}

    assert set(re.findall(r"&(\w+)=false", section)) == beyond
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} - {"key"} == answered


@pytest.mark.parametrize(
    "model",
    [
        shapes.NewSession,
        shapes.Prompt,
        shapes.Retry,
        shapes.ResolveAsk,
        shapes.Cancel,
        shapes.Steer,
        shapes.Fork,
        sessions.SessionsQuery,
        runs.EventsQuery,
    ],
)
def test_every_field_of_a_call_about_agents_is_documented(model: type[BaseModel]) -> None:
    fields = re.findall(r"^\| `(?:GET|POST|DELETE) [^|]*\| ([^|]*)\|", AGENTS, re.MULTILINE)

    assert any(set(re.findall(r"`(\w+)`", row)) == set(model.model_fields) for row in fields)


def test_every_field_of_a_message_is_documented() -> None:
    [example] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)

    assert set(re.findall(r'^  "(\w+)"', example, re.MULTILINE)) == set(
        messages.Message.model_fields
    )


def test_every_feature_is_documented() -> None:
    [row] = re.findall(r"^\| `GET /v1/info` .*$", AGENTS, re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", row.rpartition("features")[2])) == set(sessions.FEATURES)


def test_every_code_is_documented_and_no_other() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "colony" / "api").rglob("*.py"))
    raised = set(re.findall(r'Problem\(\s*\d+,\s*"(\w+)"', sources)) - {"internal_error"}
    raised |= set(messages._CODES.values()) | {"unknown_field"}
    raised |= {kind.code for kind, _ in _STATUS} | set(_OF_STATUS.values())

    [table] = re.findall(r"\| status \| codes \|\n(.*)", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", table)) - {"Retry"} == raised | {"header_too_large"}
