"""Two edges between the same ends: what both of them take is done twice."""

import json
import shutil
from pathlib import Path

import pytest

from colony.topology.load import load
from colony.trees import shipped
from tests.colonies.folding import BROUGHT

from .conftest import Tree, edge, emitting

FIRE = "has(hop.route) && hop.route == 'fire'"
# What a bare loop needs no limit for is its own finding, and none of these.
SHIPPED = sorted(path.parent.name for path in shipped("starter").parent.glob("*/main"))
HANDED = {"fold_provider": "openai", "fold_model": "m"}
LAID = {"cell": {"type": "hive"}, "params": {"template": "compaction", "with": HANDED}}


def doubled(tree: Tree, *edges: object) -> list[tuple[str, str]]:
    """The findings for a cell /a that has these edges; each leads from ./in or to a sink."""
    declared = emitting(
        route=["fire", "store"],
        n={"type": "number"},
        ok={"type": "boolean", "required": False},
        why={"type": "string", "required": False},
    )
    tree.hive("main", edge("./in", "./a"), *edges)
    tree.cell("main/in")
    tree.cell("main/a", contract=declared)
    tree.cell("main/b", "sink")
    tree.cell("main/c", "sink")
    return [(f.json_path, f.sentence) for f in tree.findings() if f.code == "edge_doubled"]


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        (FIRE, FIRE, "hop.route 'fire'"),
        (None, None, None),
        (None, FIRE, None),
        (FIRE, None, "hop.route 'fire'"),
        (f"{FIRE} && hop.n < 12", f"{FIRE} && hop.n < 3 && has(hop.ok)", "hop.route 'fire'"),
        ("hop.n >= 12", "!(hop.n < 12)", "hop.n 12"),
        ("hop.route in ['fire', 'store']", "hop.route != 'fire'", "hop.route 'store'"),
    ],
)
def test_edges_that_may_both_be_taken_are_named(tree, one, other, shown):
    (found,) = doubled(tree, edge("./a", "./b", one), edge("./a", "./b", other, set_hop={"x": "1"}))

    path, said = found
    assert path == "$.params.graph.edges[1].to"
    assert "of /a" in said
    assert "/b twice: main/config.json $.params.graph.edges[2] takes" in said
    assert shown in said if shown else " with " not in said


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hop.route == 'fire'", "hop.route == 'store'"),
        ("hop.n < 12", "hop.n >= 12"),
        (f"{FIRE} && hop.ok", f"{FIRE} && !hop.ok"),
        # The sender never says so.
        ("hop.route == 'none'", "hop.route in ['none', 'neither']"),
        # Its sender may know that there is never both.
        ("has(hop.why)", "has(hop.ok) && hop.ok"),
    ],
)
def test_edges_that_exclude_each_other_are_none(tree, one, other):
    assert doubled(tree, edge("./a", "./b", one), edge("./a", "./b", other)) == []


def test_a_fan_out_is_none(tree):
    assert doubled(tree, edge("./a", "./b", FIRE), edge("./a", "./c", FIRE)) == []


@pytest.mark.parametrize("name", SHIPPED)
def test_no_tree_that_ships_has_any(name):
    found = load(shipped(name), environment={}).findings

    assert {finding.code for finding in found} <= {"loop_unbounded"}


@pytest.mark.parametrize("tree", ["starter", "research", "research-settle"])
@pytest.mark.parametrize("left", sorted(BROUGHT), ids=" ".join)
def test_an_edge_that_is_left_beside_that_of_the_lane_is_named(tmp_path, tree, left):
    shutil.copytree(shipped(tree), tmp_path, dirs_exist_ok=True)
    hive = tmp_path / "main" / "config.json"
    written = json.loads(hive.read_text())
    edges = written["params"]["graph"]["edges"]
    kept = [e for e in edges if (e["from"], e["to"]) not in BROUGHT - {left}]
    written["params"]["graph"]["edges"] = kept
    hive.write_text(json.dumps(written))
    _write(tmp_path / "main" / "compact" / "config.json", LAID)

    found = load(tmp_path, environment={}).findings

    at = next(n for n, e in enumerate(kept) if (e["from"], e["to"]) == left)
    named = [f.json_path for f in found if f.code == "edge_doubled"]
    assert named == [f"$.params.graph.edges[{at}].to"]
    assert {f.code for f in found} <= {"edge_doubled", "lane_overlap"}


def _write(path: Path, document: object) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps(document))
