"""The page about permissions: its tables and examples say what the code does."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from colony.agent.asks import Verdict
from colony.agent.rules import Scope, judge, rule_sets
from colony.agent.telling import SHELLS, TELLING
from colony.agent.wrappers import WRAPPERS
from colony.topology.load import load
from colony.topology.model import ToolDeclaration
from tests.pages import DOCS, Block, blocks, named, rows
from workers.agent import guardrail, hooks, permit

PAGE = (DOCS / "permissions.md").read_text()
RULES, OF_COMMANDS, TREE = (json.loads(block.text) for block in blocks(PAGE))
DASH = "\N{EN DASH}"

BASH = ToolDeclaration(name="bash", description="", parameters={"type": "object"})


def test_every_block_is_tried() -> None:
    assert all(isinstance(block, Block) and block.language == "json" for block in blocks(PAGE))
    rule_sets(RULES, OF_COMMANDS, ())


@pytest.mark.parametrize(("command", "effect"), [row[:2] for row in rows(PAGE, "command")])
def test_command_becomes_what_the_page_says(command: str, effect: str) -> None:
    line = command.strip("`").replace("\\|", "|")

    assert judge(BASH, {"command": line}, rule_sets(OF_COMMANDS, {}, ())).effect == effect


def test_scopes_arguments_and_verdicts_are_those_of_the_code() -> None:
    assert [named(row[0])[0] for row in rows(PAGE, "scope")] == [*get_args(Scope)]
    assert [n for row in rows(PAGE, "argument") for n in named(row[0])] == [*TELLING]
    assert [named(row[0])[0] for row in rows(PAGE, "verdict")] == [*get_args(Verdict)]
    assert "named `{}` or `{}`".format(*SHELLS) in PAGE


def test_wrappers_are_those_of_the_code() -> None:
    (listed,) = re.findall(r"with its options: (.*?); `sudo`", PAGE, re.DOTALL)

    assert named(listed) == [*WRAPPERS]


@pytest.mark.parametrize(
    ("heading", "model"),
    [("param of the hook", hooks.Params), ("param of the guardrail", guardrail.Params)],
)
def test_params_are_those_of_the_handlers(heading: str, model: type[BaseModel]) -> None:
    written = {named(name)[0]: default.strip("`") for name, default, _ in rows(PAGE, heading)}

    assert written == {name: _default(model, name) for name in model.model_fields}


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return DASH
    if name == "hold":
        return "what is named below"
    return json.dumps(to_jsonable_python(field.get_default(call_default_factory=True)))


def test_patterns_of_the_guardrail_are_listed() -> None:
    assert [named(row[0])[0] for row in rows(PAGE, "held")] == [*guardrail.PATTERNS]


def test_decisions_of_hooks_are_those_that_are_written() -> None:
    folder = Path(permit.__file__).parent
    source = "".join(path.read_text() for path in sorted(folder.glob("*.py")))

    written = {*re.findall(r'decision="(\w+)"', source)}
    written |= {*re.findall(r'hook=\("(\w+)"', source)}
    written |= {*re.findall(r'_tell\(\w+, "(\w+)"', source)}

    assert {named(row[0])[0] for row in rows(PAGE, "decision")} == written


def test_deadline_is_a_day() -> None:
    assert permit.Params().ask_deadline_ms == guardrail.Params().ask_deadline_ms == 86_400_000


def test_tree_of_the_page_loads(tmp_path: Path) -> None:
    documents: dict[str, Any] = TREE
    for path, document in documents.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps(document))

    spec = load(tmp_path, environment={}).publishable()

    edges = {(edge.source, edge.target) for edge in spec.edges}
    assert {("/assistant/dispatch", "/no_keys"), ("/no_keys", "/assistant/permit")} <= edges
