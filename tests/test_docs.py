"""The documents: every program and tree on the pages about cells is run, and links lead somewhere.

The project that the pages describe is laid out, installed as far as entry points go, and its own
tests are run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from colony.body import Entry
from colony.cell import ENTRY_POINTS
from colony.testing.harness import Harness
from colony.testing.model_server import ModelServer
from colony.topology.load import Loaded, load
from colony.trees import shipped
from tests.pages import BLOCKS, DOCS, PAGES, Block, blocks

LAID_OUT = ("file", "tree", "edges", "without", "params")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that the pages describe."""
    root = tmp_path_factory.mktemp("project")
    for block in BLOCKS:
        match block.marks:
            case {"file": path}:
                _write(root / path, block.text)
            case {"tree": name}:
                _lay_out(root, name, block)
            case {"edges": name}:
                _join(root / name / "main" / "config.json", json.loads(block.text))
            case {"without": name}:
                _part(root / name / "main" / "config.json", json.loads(block.text))
    for block in BLOCKS:
        if cell := block.marks.get("params"):
            tree, _, name = cell.partition("/")
            _set(root / tree, name, **json.loads(block.text))
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


def _part(config: Path, ends: list[dict[str, str]]) -> None:
    """Take every edge with one of these ends out of a hive, which has such edges."""
    hive = json.loads(config.read_text())
    graph = hive["params"]["graph"]
    for end in ends:
        kept = [edge for edge in graph["edges"] if {k: edge[k] for k in ("from", "to")} != end]
        assert len(kept) < len(graph["edges"]), end
        graph["edges"] = kept
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
    loose = [block.text for block in BLOCKS if not block.marks.keys() & {*LAID_OUT, "config"}]

    assert loose == []
    assert sum(page.count("\n```") for page in PAGES.values()) == 2 * len(BLOCKS)


def test_what_the_readme_shows_stands_on_a_page_whole() -> None:
    shown = blocks((DOCS.parent / "README.md").read_text())

    assert shown
    assert all(block in BLOCKS for block in shown)


def test_programs_of_the_pages_do_what_their_tests_say(project: Path, redis_binary: Path) -> None:
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


def test_project_of_the_pages_can_be_installed(project: Path, tmp_path: Path) -> None:
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


def _starters_readme() -> str:
    return (shipped("starter") / "README.md").read_text()


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


async def test_conversation_of_the_starter_shows_as_its_readme_says(
    importable: Path, redis_url: str
) -> None:
    asked = re.findall(r'^    colony send /prep "(.+)" --session me', _starters_readme(), re.M)
    assert len(asked) == 2
    spec = load(shipped("starter"), environment={}).publishable()

    async with Harness(redis_url, spec, environment={}, root=importable / "words") as colony:
        for question in asked:
            trace = await colony.ask("/prep", question, context={"session_id": "me"})
            await colony.finish()
        sent = await colony.hops(trace)

    views = [h.body["messages"] for h in sent if h.head.target == "/planner"]
    texts = [entry["text"] for entry in views[0]]
    assert [texts[0], texts[-1]] == asked
    assert texts[1].startswith(f"You asked “{asked[0]}”, ")


async def test_lane_folds_on_the_starter_as_its_page_says(importable: Path, redis_url: str) -> None:
    tree = importable / "folding"
    spec = load(tree, environment={}).publishable()

    async with Harness(redis_url, spec, environment={}, root=tree) as colony:
        trace = await colony.ask("/prep", "How far is a marathon?")
        await colony.finish()
        hops = await colony.hops(trace)
        assert await colony.letters() == []

    views = [hop.body["messages"] for hop in hops if hop.head.target == "/planner"]
    folded = [any("GOAL\nConvert." in str(e.get("text")) for e in entries) for entries in views]
    assert sorted(folded) == [False, False, True]


def test_clock_of_the_starter_is_taken_up_as_its_readme_says(tmp_path: Path) -> None:
    tree = tmp_path / "mine"
    shutil.copytree(shipped("starter"), tree)
    params = {"schedules": {"s": {"cron": "0 0 7 * * *", "text": "How far is a marathon?"}}}
    clock = {"cell": {"type": "timer"}, "params": params}
    _write(tree / "main" / "ticker" / "config.json", json.dumps(clock))
    lane = {"from": "/colony/quiet", "to": "./closer"}
    condition = re.search(r'"condition": (".*/ticker.*")$', (tree / "README.md").read_text(), re.M)
    assert condition is not None

    _join(tree / "main" / "config.json", [{"from": "./ticker", "to": "./prep"}])
    assert _complaints(load(tree, environment={})) == ["quiet_entry_missing"]
    _join(tree / "main" / "config.json", [lane | {"condition": json.loads(condition[1])}])
    assert _complaints(load(tree, environment={})) == []


@pytest.mark.parametrize(
    "name", sorted({block.marks["tree"] for block in BLOCKS if "tree" in block.marks})
)
def test_tree_of_a_page_is_valid(importable: Path, name: str) -> None:
    # The folders are those of a host.
    assert set(_complaints(load(importable / name, environment={}))) <= {"folder_missing"}


def test_params_that_the_handler_of_a_page_refuses_are_named(importable: Path) -> None:
    config = importable / "offers" / "main" / "north" / "config.json"
    written = config.read_text()
    cell = json.loads(written)
    cell["params"] = {"handler": "offering:offer", "price": 0, "discont": 5}

    config.write_text(json.dumps(cell))
    try:
        findings = load(importable / "offers", environment={}).findings
    finally:
        config.write_text(written)

    assert [(finding.code, finding.json_path) for finding in findings] == [
        ("invalid_value", "$.params.price"),
        ("unknown_key", "$.params.discont"),
    ]


def test_cells_of_the_pages_are_valid(tmp_path: Path) -> None:
    cells = [block.text for block in BLOCKS if "config" in block.marks]

    _write(tmp_path / "main" / "config.json", '{"cell": {"type": "hive"}}')
    for number, text in enumerate(cells):
        _write(tmp_path / "main" / f"c{number}" / "config.json", text)
    loaded = load(tmp_path, environment={})

    assert loaded.spec is not None
    assert len(loaded.spec.cells) == len(cells) > 0
    assert set(_complaints(loaded)) <= {"cell_unwired", "variable_unset", "folder_missing"}


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


def test_lane_of_the_page_goes_into_the_assistant_of_the_readme(
    importable: Path, tmp_path: Path
) -> None:
    shutil.copytree(importable / "assistant", tmp_path, dirs_exist_ok=True)
    laid = importable / "compacting" / "main" / "compact"
    shutil.copytree(laid, tmp_path / "main" / "compact")
    (ends,) = [json.loads(block.text) for block in BLOCKS if "without" in block.marks]

    _part(tmp_path / "main" / "config.json", ends)

    assert set(_complaints(load(tmp_path, environment={}))) <= {"folder_missing"}


async def test_assistant_of_the_page_has_its_tools_do_what_the_model_asks(
    importable: Path, tmp_path: Path, redis_url: str
) -> None:
    shutil.copytree(importable / "assistant", tmp_path, dirs_exist_ok=True)
    calls = [
        {"id": "c1", "name": "bash", "arguments": {"command": "echo light"}},
        {"id": "c2", "name": "file", "arguments": {"op": "list", "path": "."}},
    ]
    with ModelServer([{"tool_calls": calls}, {"text": "Both are done."}]) as model:
        _set(tmp_path, "planner", base_url=model.base_url)
        _set(tmp_path, "file", base_path=str(tmp_path))
        spec = load(tmp_path, environment={}).publishable()
        async with Harness(redis_url, spec, environment={}, root=tmp_path) as colony:
            trace = await colony.ask("/prep", "What is here?")
            await colony.finish()
            (output,) = await colony.outputs(trace)

    assert output["body"]["messages"] == [Entry.say("assistant", "Both are done.").to_json()]
    results = [m["content"] for m in model.requests[1].messages if m["role"] == "tool"]
    assert results[0] == "light"
    assert "main/" in results[1]


def _set(tree: Path, cell: str, **params: str) -> None:
    path = tree / "main" / cell / "config.json"
    config = json.loads(path.read_text())
    config["params"] |= params
    path.write_text(json.dumps(config))


def _complaints(loaded: Loaded) -> list[str]:
    return [finding.code for finding in loaded.findings]


@pytest.mark.parametrize(
    "page",
    sorted(
        path
        for pattern in ("*.md", "docs/*.md", "config/*/README.md")
        for path in DOCS.parent.glob(pattern)
    ),
    ids=lambda page: str(page.relative_to(DOCS.parent)),
)
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
    if not anchor:
        return target.exists()
    headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if target.exists() else []
    return anchor in {_anchor(heading) for heading in headings}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
