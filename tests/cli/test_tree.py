"""Commands about a tree on disk."""

import json
from pathlib import Path


def spoil(tree: Path, place: str, text: str) -> None:
    (tree / place / "config.json").write_text(text)


def test_a_sound_tree_ends_with_0(colony, tree: Path) -> None:
    assert colony("validate", str(tree)).stdout == "0 errors, 0 warnings\n"


def test_warnings_end_with_1_where_they_matter(colony, tree: Path) -> None:
    (tree / "main" / "idle").mkdir()
    spoil(tree, "main/idle", '{"cell": {"type": "sink"}}')

    assert "cell_unwired" in colony("validate", str(tree)).stdout
    assert colony("validate", str(tree), "--strict", status=1).stdout.endswith("1 warning\n")


def test_errors_end_with_2_and_are_listed_all(colony, tree: Path) -> None:
    spoil(tree, "main/greet", '{"cell": {"type": "cod"}}')
    spoil(tree, "main/out", "{")

    told = colony.json("validate", str(tree), status=2)
    assert told["errors"] == 2
    assert {finding["file"] for finding in told["findings"]} >= {
        "main/greet/config.json",
        "main/out/config.json",
    }
    for command in ("apply", "graph", "up"):
        complaint = colony(command, str(tree), status=2).stderr
        assert "unknown_cell_type" in complaint
        assert complaint.splitlines()[-1] == "colony: topology_invalid: the tree has 2 errors"


def test_a_root_that_is_not_there_is_refused(colony) -> None:
    assert "does not exist" in colony("validate", "/nowhere", status=2).stderr


def test_applying_raises_the_version_once(colony, tree: Path) -> None:
    assert "is at version 1: 3 cells" in colony("apply", str(tree)).stdout
    assert colony.json("apply", str(tree))["version"] == 1

    edges = [{"from": "./greet", "to": "./out"}, {"from": "./slow", "to": "./out"}]
    hive = {"cell": {"type": "hive"}, "params": {"graph": {"edges": edges}}}
    spoil(tree, "main", json.dumps(hive))
    assert colony.json("apply", str(tree))["version"] == 2
    spoil(tree, "main/slow", '{"cell": {"type": "sink"}}')
    assert "topology_conflict" in colony("apply", str(tree), "--expect", "1", status=2).stderr


def test_an_unset_variable_warns_in_validation_and_is_refused_by_apply(colony, tree: Path) -> None:
    (tree / "colony.json").write_text('{"message_default_ttl": "${TTL_OF_TEST}"}')

    assert "TTL_OF_TEST" in colony("validate", str(tree)).stdout
    refused = colony("apply", str(tree), status=2).stderr
    assert "variable_unset: set neither in the environment nor in the tree's .env: TTL" in refused
    colony.env["TTL_OF_TEST"] = "9"
    assert colony.json("apply", str(tree))["version"] == 1


def test_a_sink_is_put_where_it_is_asked_for(colony, tree: Path) -> None:
    (tree / "main" / "out" / "config.json").unlink()
    (tree / "main" / "out").rmdir()

    assert "dangling_endpoint" in colony("validate", str(tree)).stdout
    assert colony("validate", str(tree), "--sink", "/out").stdout == "0 errors, 0 warnings\n"


def test_a_tree_is_drawn_in_three_ways(colony, tree: Path) -> None:
    assert colony("graph", str(tree)).stdout.startswith("flowchart LR")
    assert colony("graph", str(tree), "--format", "dot").stdout.startswith("digraph colony {")
    drawn = colony.json("graph", str(tree))
    assert {"path": "/out", "cell_type": "sink"} in drawn["nodes"]


def test_a_new_tree_is_sound_and_is_never_written_over(colony, tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    assert "tools.py" in colony("new", str(directory)).stdout
    assert colony("validate", str(directory), "--strict").stdout == "0 errors, 0 warnings\n"

    assert "config_invalid" in colony("new", str(directory), status=2).stderr
    other = colony.json("new", str(tmp_path / "other"))
    assert "main/convert/config.json" in other["files"]


def test_a_handler_that_is_not_here_keeps_up_from_starting_and_nothing_else(
    colony, tree: Path
) -> None:
    (tree / "cli_handlers.py").write_text("def greet(:\n")

    assert colony("validate", str(tree)).stdout.count("warning handler_not_importable") == 2
    assert "at version 1" in colony("apply", str(tree)).stdout
    assert "error handler_not_importable" in colony("up", str(tree), status=2).stderr
