"""The quiet lane under lint, with the cell types that ship: traces that nothing takes up."""

from pathlib import Path

import pytest

from colony.topology.load import load

from .conftest import Tree, edge

SCHEDULES = {"s": {"cron": "0 0 7 * * *", "text": "x"}}
FIRINGS, ACKS = "has(hop.schedule_id)", "!has(hop.schedule_id)"


def codes(tmp_path: Path, quiet: str | None, *edges: object) -> list[str]:
    """What is found in a tree of an intake and a clock, with a quiet lane of this condition."""
    tree = Tree(tmp_path)
    lane = edge("/colony/quiet", "./closer", quiet)
    acks = edge("./ticker", "./log", ACKS)
    tree.hive("main", edge("./prep", "./out"), edge("./closer", "./out"), lane, acks, *edges)
    for name in ("prep", "closer", "out", "log"):
        tree.cell(f"main/{name}", "sink")
    tree.cell("main/ticker", "timer", params={"schedules": SCHEDULES})
    return [f.code for f in load(tmp_path, environment={}).findings if f.code != "cell_unwired"]


@pytest.mark.parametrize(
    ("quiet", "found"),
    [
        ("hop.entry == '/prep' && hop.outputs == 0", ["quiet_entry_missing"]),
        ("hop.entry in ['/prep', '/ticker'] && hop.outputs == 0", []),
        ("hop.entry == '/prep' || hop.entry == '/ticker'", []),
        ("hop.outputs == 0", []),
        (None, []),
    ],
)
def test_a_clock_that_leads_to_the_intake_has_its_traces_taken_up(
    tmp_path: Path, quiet: str | None, found: list[str]
) -> None:
    assert codes(tmp_path, quiet, edge("./ticker", "./prep", FIRINGS)) == found


def test_a_clock_that_leads_elsewhere_needs_no_intake(tmp_path: Path) -> None:
    assert codes(tmp_path, "hop.entry == '/prep'", edge("./ticker", "./log", FIRINGS)) == []
