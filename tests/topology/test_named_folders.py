"""Folders that params name: what `validate` says of them before a worker does."""

from pathlib import Path

import pytest

from colony.topology.findings import Finding, hosted_here
from colony.topology.load import load

from .conftest import Tree, edge

NAMED = [
    ("file", "base_path"),
    ("edit", "base_path"),
    ("web_fetch", "root"),
    ("web_search", "corpus"),
    ("bash", "directory"),
]


@pytest.fixture
def real(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.hive("main", edge("./in", "./a"))
    tree.cell("main/in", "sink")
    return tree


def found(tree: Tree, **environment: str) -> list[Finding]:
    return list(load(tree.root, environment=environment).findings)


@pytest.mark.parametrize(("kind", "param"), NAMED)
def test_a_folder_that_is_not_here_is_an_error_only_where_the_cell_is_run(
    real: Tree, kind: str, param: str
) -> None:
    real.cell("main/a", kind, params={param: "${FOLDER:-/no/such/folder}"})

    [finding] = found(real)
    assert (finding.severity, finding.code) == ("warning", "folder_missing")
    assert finding.json_path == f"$.params.{param}"
    assert "/no/such/folder" in finding.sentence
    assert [one.severity for one in hosted_here([finding])] == ["error"]
    assert found(real, FOLDER=str(real.root)) == []


@pytest.mark.parametrize("kind", ["file", "edit"])
@pytest.mark.parametrize("written", ["", "notes", "~/notes"])
def test_a_base_path_is_absolute(real: Tree, kind: str, written: str) -> None:
    real.cell("main/a", kind, params={"base_path": written})

    [finding] = found(real)
    assert (finding.severity, finding.code) == ("error", "folder_relative")
    assert repr(written) in finding.sentence


@pytest.mark.parametrize(("kind", "param"), NAMED[2:])
def test_a_relative_folder_lies_below_the_cell(real: Tree, kind: str, param: str) -> None:
    real.cell("main/a", kind, params={param: "below"})

    assert found(real) == []
