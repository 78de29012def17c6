"""What of a tree would not start: with the cell types that ship, not those of this folder."""

import json
import sys
from pathlib import Path

import pytest

from colony.topology.findings import Finding, hosted_here
from colony.topology.load import load

from .conftest import Tree, edge

CONFIG = "main/a/config.json"
HANDLER = "$.params.handler"
TOOLS = "def convert(envelope, params):\n    return None\n"


@pytest.fixture
def real(tmp_path: Path) -> Tree:
    """A tree of /a and a sink, with `modtools.py` beside it."""
    tree = Tree(tmp_path)
    tree.hive("main", edge("./a", "./out"))
    tree.cell("main/out", "sink")
    tree.put("modtools.py", TOOLS)
    return tree


def found(tree: Tree, **environment: str) -> list[Finding]:
    return list(load(tree.root, environment=environment).findings)


def only(tree: Tree) -> tuple[str, str, str, str, str]:
    [one] = found(tree)
    return one.severity, one.file, one.json_path, one.code, one.sentence


class TestHandlers:
    def test_a_handler_beside_the_tree_is_found_and_leaves_nothing_behind(self, real: Tree) -> None:
        real.cell("main/a", params={"handler": "modtools:convert"})
        path = [*sys.path]

        assert found(real) == []
        assert "modtools" not in sys.modules
        assert sys.path == path
        assert not (real.root / "__pycache__").exists()

    @pytest.mark.parametrize(
        ("handler", "told"),
        [
            ("modtools:nosuch", "nosuch"),
            ("modtoolz:convert", "modtoolz"),
            ("modbroken:convert", "SyntaxError"),
            ("modraising:convert", "RuntimeError: no licence"),
            ("modleaving:convert", "SystemExit"),
            ("modtools:__name__", "not a function"),
        ],
    )
    def test_one_that_cannot_be_imported_is_a_warning(
        self, real: Tree, handler: str, told: str
    ) -> None:
        real.put("modbroken.py", "def convert(:\n")
        real.put("modraising.py", "raise RuntimeError('no licence')\n")
        real.put("modleaving.py", "raise SystemExit(3)\n")
        real.cell("main/a", params={"handler": handler})

        severity, *place, sentence = only(real)
        assert (severity, place) == ("warning", [CONFIG, HANDLER, "handler_not_importable"])
        assert handler in sentence
        assert told in sentence
        assert [one.severity for one in hosted_here(found(real))] == ["error"]

    def test_a_module_that_was_mended_is_read_again(self, real: Tree) -> None:
        real.cell("main/a", params={"handler": "modtools:other"})
        assert len(found(real)) == 1

        real.put("modtools.py", TOOLS.replace("convert", "other"))
        assert found(real) == []

    def test_one_that_a_variable_names_is_looked_for_once_it_is_set(self, real: Tree) -> None:
        real.cell("main/a", params={"handler": "modtools:${NAME_OF_HANDLER}"})

        assert [one.code for one in found(real)] == ["variable_unset"]
        assert found(real, NAME_OF_HANDLER="convert") == []
        codes = [one.code for one in found(real, NAME_OF_HANDLER="nosuch")]
        assert codes == ["handler_not_importable"]

    def test_what_a_module_prints_is_kept_off_standard_output(
        self, real: Tree, capsys: pytest.CaptureFixture[str]
    ) -> None:
        real.put("modtools.py", TOOLS + "print('loud')\n")
        real.cell("main/a", params={"handler": "modtools:convert"})

        assert found(real) == []
        assert capsys.readouterr() == ("", "loud\n")


def test_a_cell_may_run_as_a_job(real: Tree) -> None:
    cell = {"type": "code", "isolation": "job"}
    real.put(CONFIG, {"cell": cell, "params": {"handler": "modtools:convert"}})

    assert found(real) == []


@pytest.mark.parametrize(
    ("kind", "isolation", "params"),
    [("code", "inline", {"script_inline": "pass"}), ("web_fetch", "process", {})],
)
def test_an_isolation_that_is_not_to_be_had_is_an_error(
    real: Tree, kind: str, isolation: str, params: dict[str, str]
) -> None:
    real.put(CONFIG, {"cell": {"type": kind, "isolation": isolation}, "params": params})

    *place, _ = only(real)
    assert place == ["error", CONFIG, "$.cell.isolation", "isolation_unavailable"]


class TestSeeds:
    @pytest.mark.parametrize("line", ["{", "[1]", '{"id": "b", "nosuch": 1}', '{"n": "many"}'])
    def test_a_line_that_is_no_row_is_named(self, real: Tree, line: str) -> None:
        real.cell("main/a", "store", params={"schema": {"notes": {"id": "text", "n": "int"}}})
        real.put("main/a/seed/notes.jsonl", '{"id": "a"}\n\n' + line + '\n{"id": "c"}\n')

        *place, sentence = only(real)
        assert place == ["error", "main/a/seed/notes.jsonl", "$[2]", "seed_invalid"]
        assert "Line 3" in sentence

    def test_a_seed_of_no_table_is_named(self, real: Tree) -> None:
        real.cell("main/a", "store", params={"schema": {"notes": {"id": "text"}}})
        real.put("main/a/seed/nodes.jsonl", '{"id": "a"}\n')

        *place, sentence = only(real)
        assert place == ["error", "main/a/seed/nodes.jsonl", "$", "seed_invalid"]
        assert "'nodes'" in sentence

    def test_a_sound_seed_is_none(self, real: Tree) -> None:
        real.cell("main/a", "store", params={"schema": {"notes": {"id": "text"}}})
        rows = [json.dumps({"id": text}, ensure_ascii=False) for text in ("a", "b\u2028c")]
        real.put("main/a/seed/notes.jsonl", "\r\n".join(rows) + "\r\n\r\n")

        assert found(real) == []

    def test_one_that_is_no_text_is_named(self, real: Tree) -> None:
        real.cell("main/a", "store", params={"schema": {"notes": {"id": "text"}}})
        real.put("main/a/seed/notes.jsonl", "")
        (real.root / "main/a/seed/notes.jsonl").write_bytes(b"\xff")

        *place, _ = only(real)
        assert place == ["error", "main/a/seed/notes.jsonl", "$", "unreadable_file"]


class TestShadows:
    @pytest.mark.parametrize(
        ("file", "place", "severity"),
        [
            ("workers.py", "workers.py", "error"),
            ("colony.py", "colony.py", "error"),
            ("workers/mine.py", "workers/", "error"),
            ("colony/__init__.py", "colony/", "error"),
            ("json.py", "json.py", "warning"),
        ],
    )
    def test_a_module_that_hides_an_installed_one_is_a_finding(
        self, real: Tree, file: str, place: str, severity: str
    ) -> None:
        real.cell("main/a", params={"handler": "modtools:convert"})
        real.put(file, "")

        *where, sentence = only(real)
        assert where == [severity, place, "$", "module_shadowed"]
        assert f"'{Path(place).stem}'" in sentence

    def test_a_folder_without_modules_hides_nothing(self, real: Tree) -> None:
        real.cell("main/a", params={"handler": "modtools:convert"})
        real.put("workers/notes.txt", "")

        assert found(real) == []
