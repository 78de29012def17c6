"""The documents: every program, tree and table on `docs/cells.md` is held against the code.

A fenced block names what it is in its first line. `file=PATH` is a file of a project; `tree=NAME`
the files of a tree as one object, on top of the tree `base=NAME`; `edges=NAME` edges of that tree,
in place of those with the same ends; `config` the config.json of a cell. The project that a page
describes is laid out, installed as far as entry points go, and its own tests are run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from colony.audit import LOST
from colony.body import Entry
from colony.cell import ENTRY_POINTS, Host, Source, cell_type
from colony.errors import (
    BlobRecursionTooDeep,
    BlobUnavailable,
    BodyError,
    CellError,
    ColonyError,
    EnvelopeError,
    PlatformError,
    ReceiptConflict,
    StoreError,
)
from colony.operations import OPERATIONS
from colony.testing.harness import Harness
from colony.topology.load import Loaded, load
from colony.topology.model import HiveParams
from colony.trees import shipped
from workers.llm.provider import ErrorCode

DOCS = Path(__file__).parents[1] / "docs"
CELLS = (DOCS / "cells.md").read_text()
CELL_TYPES = (
    "code",
    "llm",
    "store",
    "web_search",
    "web_fetch",
    "bash",
    "file",
    "edit",
    "mcp",
    "proxy",
    "timer",
    "sink",
    "hive",
)
DASH = "\N{EN DASH}"
LAID_OUT = ("file", "tree", "edges")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with what its first line says of it."""

    language: str
    marks: Mapping[str, str]
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [
        Block(language, dict((m + "=").split("=")[:2] for m in rest.split()), text)
        for language, rest, text in found
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that the page describes."""
    root = tmp_path_factory.mktemp("project")
    for block in blocks(CELLS):
        match block.marks:
            case {"file": path}:
                _write(root / path, block.text)
            case {"tree": name}:
                _lay_out(root, name, block)
            case {"edges": name}:
                _join(root / name / "main" / "config.json", json.loads(block.text))
    _install(root)
    return root


def _lay_out(root: Path, name: str, block: Block) -> None:
    if base := block.marks.get("base"):
        source = root / base if (root / base).is_dir() else shipped(base)
        shutil.copytree(source, root / name, dirs_exist_ok=True)
    for path, document in json.loads(block.text).items():
        _write(root / name / path, json.dumps(document))


def _join(config: Path, edges: list[dict[str, Any]]) -> None:
    """Put `edges` into a hive, in place of those with the same ends."""
    hive = json.loads(config.read_text())
    graph = hive["params"]["graph"]
    ends = {(edge["from"], edge["to"]) for edge in edges}
    kept = [edge for edge in graph["edges"] if (edge["from"], edge["to"]) not in ends]
    graph["edges"] = kept + edges
    config.write_text(json.dumps(hive))


def _install(root: Path) -> None:
    """Make the project's entry points known, as its installation would."""
    described = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines: list[str] = []
    for group, points in described["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    info = root / f"{described['name']}-{described['version']}.dist-info"
    _write(info / "METADATA", f"Name: {described['name']}\nVersion: {described['version']}\n")
    _write(info / "entry_points.txt", "\n".join(lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def importable(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project with its modules, as a worker of one of its trees finds them."""
    before = set(sys.modules)
    for folder in (project, *(path for path in project.iterdir() if (path / "main").is_dir())):
        monkeypatch.syspath_prepend(str(folder))
    yield project
    for name in set(sys.modules) - before:
        if str(project) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_block_of_python_and_json_is_put_to_the_test() -> None:
    loose = [
        block.text for block in blocks(CELLS) if not block.marks.keys() & {*LAID_OUT, "config"}
    ]

    assert loose == []
    assert CELLS.count("\n```") == 2 * len(blocks(CELLS))


def test_programs_of_the_page_do_what_their_tests_say(project: Path, redis_binary: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    environment = {
        **os.environ,
        "COLONY_REDIS_BIN": str(redis_binary),
        "PYTHONPATH": os.pathsep.join([str(project), str(DOCS.parent)]),
    }

    ran = subprocess.run(
        [*command, "-p", "no:valkey", str(project)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_project_of_the_page_can_be_installed(project: Path, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "shouting.py", "counting.py"):
        shutil.copy(project / name, tmp_path)

    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "built"]
    ran = subprocess.run(
        build, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (wheel,) = (tmp_path / "built").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert {"shouting.py", "counting.py"} <= {*packed.namelist()}
    (installed,) = distributions(path=[str(wheel)])
    named = {point.name: point.value for point in installed.entry_points.select(group=ENTRY_POINTS)}
    assert named == {"shout": "shouting:Shout", "word_count": "counting:WordCount"}


@pytest.mark.parametrize("missing", ["catch-all", None])
def test_catch_all_that_is_left_as_it_was_is_found(
    importable: Path, tmp_path: Path, missing: str | None
) -> None:
    tree = tmp_path / "words"
    shutil.copytree(importable / "words", tree)
    if missing:
        _join(tree / "main" / "config.json", [_starters_catch_all()])

    assert _complaints(load(tree, environment={})) == (["lane_overlap"] if missing else [])


def _starters_catch_all() -> dict[str, Any]:
    hive = json.loads((shipped("starter") / "main" / "config.json").read_text())
    edges: list[dict[str, Any]] = hive["params"]["graph"]["edges"]
    return next(edge for edge in edges if edge["to"] == "./unknown")


def test_second_tool_of_the_starter_works_as_its_readme_says(tmp_path: Path) -> None:
    tree = tmp_path / "mine"
    shutil.copytree(shipped("starter"), tree)
    readme = (tree / "README.md").read_text()
    added = [
        json.loads(line.strip().rstrip(",")) for line in readme.splitlines() if '"from"' in line
    ]
    condition = re.search(r'"condition": (".*in \[.*\]\)")$', readme, re.MULTILINE)
    assert condition is not None
    replaced = _starters_catch_all() | {"condition": json.loads(condition[1])}
    function = '\n\n@tool()\ndef word_count(text: str) -> int:\n    """Count."""\n    return 1\n'
    _write(tree / "tools.py", (tree / "tools.py").read_text() + function)
    cell = {"cell": {"type": "code"}, "params": {"handler": "tools:word_count"}}
    _write(tree / "main" / "word_count" / "config.json", json.dumps(cell))

    _join(tree / "main" / "config.json", added)
    assert _complaints(load(tree, environment={})) == ["lane_overlap"]
    _join(tree / "main" / "config.json", [replaced])
    assert _complaints(load(tree, environment={})) == []


@pytest.mark.parametrize(
    "name", sorted({block.marks["tree"] for block in blocks(CELLS) if "tree" in block.marks})
)
def test_tree_of_the_page_is_valid(importable: Path, name: str) -> None:
    assert _complaints(load(importable / name, environment={})) == []


def test_cells_of_the_page_are_valid(tmp_path: Path) -> None:
    cells = [block.text for block in blocks(CELLS) if "config" in block.marks]

    _write(tmp_path / "main" / "config.json", '{"cell": {"type": "hive"}}')
    for number, text in enumerate(cells):
        _write(tmp_path / "main" / f"c{number}" / "config.json", text)
    loaded = load(tmp_path, environment={})

    assert loaded.spec is not None
    assert len(loaded.spec.cells) == len(cells) > 0
    assert set(_complaints(loaded)) <= {"cell_unwired", "variable_unset"}


async def test_agent_calls_the_tool_that_the_page_adds(importable: Path, redis_url: str) -> None:
    planner = importable / "words" / "main" / "planner" / "config.json"
    cell = json.loads(planner.read_text())
    call = {"id": "c1", "name": "word_count", "arguments": {"text": "to be or not to be"}}
    other = {"id": "c2", "name": "missing", "arguments": {}}
    cell["params"]["script"] = [{"tool_calls": [call, other]}, {"text": "Six."}]
    planner.write_text(json.dumps(cell))
    spec = load(importable / "words", environment={}).publishable()

    async with Harness(redis_url, spec, environment={}, root=importable / "words") as colony:
        trace = await colony.ask("/prep", "How many words?")
        await colony.finish()
        (output,) = await colony.outputs(trace)
        asked = [h.body for h in await colony.hops(trace) if h.head.target == "/planner"]

    assert output["body"]["messages"] == [Entry.say("assistant", "Six.").to_json()]
    results = {e["id"]: e["text"] for e in asked[1]["messages"] if e["type"] == "tool_result"}
    assert results["c1"] == "6"
    assert "unknown_tool" in results["c2"]


def _complaints(loaded: Loaded) -> list[str]:
    return [finding.code for finding in loaded.findings]


# Tables


def section(heading: str) -> str:
    """What the page says below a heading, up to the next of its kind."""
    level = heading.partition(" ")[0]
    below = CELLS.split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^#{{2,{len(level)}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str, first: str) -> list[tuple[str, ...]]:
    """The rows of the table whose first column is headed `first`."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found: list[tuple[str, ...]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append(tuple(cell.strip() for cell in line.strip("|").split(" | ")))
    return found


def named(cell: str) -> list[str]:
    """What a cell of a table lists in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def _defaults(model: type[BaseModel]) -> dict[str, str]:
    """What each param is when it is left out, as JSON; a dash where it has to be given."""
    return {
        field.alias or name: DASH
        if field.is_required()
        else json.dumps(to_jsonable_python(field.get_default(call_default_factory=True)))
        for name, field in model.model_fields.items()
    }


@pytest.mark.parametrize("name", CELL_TYPES)
def test_params_are_those_of_the_cell_type(name: str) -> None:
    model: type[BaseModel] = HiveParams if name == "hive" else cell_type(name).Params
    written = (
        {}
        if name == "sink"
        else {
            param: default.strip("`")
            for params, default, *_ in rows(section(f"### `{name}`"), "param")
            for param in named(params)
        }
    )

    assert written == _defaults(model)


def _codes(family: type[ColonyError]) -> Iterator[str]:
    for kind in family.__subclasses__():
        yield kind.code
        yield from _codes(kind)


def _of_programs() -> set[str]:
    """The codes that the modules of the code cell name."""
    text = "".join(path.read_text() for path in (DOCS.parent / "workers" / "code").glob("*.py"))
    found = {*re.findall(r'Failure\(\s*"(\w+)"', text)}
    return (
        found
        | {*re.findall(r'^(?:TOO_LATE|BROKEN) = "(\w+)"', text, re.MULTILINE)}
        | {"invalid_ubf_body"}
    )


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("code", _of_programs),
        ("llm", lambda: {*get_args(ErrorCode)}),
        (
            "store",
            lambda: {*_codes(StoreError), "write_denied", "query_timeout"} - {ReceiptConflict.code},
        ),
        (
            "web_fetch",
            lambda: {
                *("invalid_input", "not_found", "target_blocked", "timeout", "io_error"),
                *("invalid_redirect", "too_many_redirects"),
            },
        ),
        ("web_search", lambda: {"invalid_input", "timeout", "io_error"}),
        (
            "proxy",
            lambda: {
                *("invalid_body", "missing_chat_id", "missing_assistant_turn"),
                PlatformError.code,
            },
        ),
        ("timer", lambda: {"invalid_input", "not_found", "timeout"}),
        ("bash", lambda: {"invalid_input", "timeout", "io_error"}),
        (
            "mcp",
            lambda: {
                *("invalid_input", "unknown_tool", "tool_failed", "timeout"),
                *("not_connected", "connection_lost"),
            },
        ),
    ],
)
def test_error_codes_are_those_of_the_cell_type(name: str, codes: Callable[[], set[str]]) -> None:
    written = [c for found, *_ in rows(section(f"### `{name}`"), "code") for c in named(found)]

    assert sorted(written) == sorted(codes())


def test_host_is_described_whole() -> None:
    written = [n for found, _ in rows(section("### The host"), "member") for n in named(found)]

    members = {name for name in vars(Host) if not name.startswith("_")}
    assert {name.partition("(")[0] for name in written} == members


def test_source_is_described_whole() -> None:
    table = rows(section("### Envelopes of its own"), "member")
    written = {n.partition("(")[0] for found, _ in table for n in named(found)}

    assert written == {name for name in vars(Source) if not name.startswith("_")}


def test_operations_are_those_of_the_store() -> None:
    written = {n for found, *_ in rows(section("### `store`"), "operation") for n in named(found)}

    assert written == OPERATIONS


def _codes_of_death() -> dict[str, bool]:
    """Every code that the modules which bury envelopes name, and whether it is answered."""
    colony = DOCS.parent / "colony"
    text = "".join(
        (colony / f"{name}.py").read_text() for name in ("routing", "consumer", "unhosted")
    )
    routed = {*re.findall(r'(?:_stranded|Death|bury|letter_of)\([^"()]*"(\w+)"', text)}
    routed |= {*re.findall(r'return "(\w+)"', text), *re.findall(r'return "(\w+)" if', text)}
    routed |= {"ttl_expired", LOST, *re.findall(r'else "(\w+)"', text)}
    refused = {*re.findall(r'_refuse\([^"()]*"(\w+)"', (colony / "worker.py").read_text())}
    families = (EnvelopeError, CellError)
    raised = {BlobUnavailable.code, BlobRecursionTooDeep.code, BodyError.code}
    raised |= {code for kind in families for code in (kind.code, *_codes(kind))}
    return dict.fromkeys(routed | raised, False) | dict.fromkeys(
        refused | {"unresolved_path"}, True
    )


def test_every_code_of_a_dead_letter_has_its_row() -> None:
    page = (DOCS / "dead-letters.md").read_text()
    tables = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", page, re.MULTILINE)

    assert {code: answered == "yes" for code, answered in tables} == _codes_of_death()


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = [
        link
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if "://" not in link and not _leads_somewhere(page, link)
    ]

    assert broken == []


def _leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return False
    headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
    return not anchor or anchor in {_anchor(heading) for heading in headings}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
