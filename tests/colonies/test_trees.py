"""Every tree that ships is sound, with an empty environment."""

import pytest

from colony.topology.load import load
from colony.trees import shipped


@pytest.mark.parametrize(
    "name", ["compaction", "hello", "research", "research-settle", "telegram-research"]
)
def test_tree_is_free_of_findings(name: str) -> None:
    assert load(shipped(name), environment={}).findings == ()


def test_fixture_has_the_one_fault_of_its_model() -> None:
    """Its rounds are bounded by what its script asks for, not by an edge."""
    loaded = load(shipped("tool-loop"), environment={})

    assert [finding.code for finding in loaded.findings] == ["loop_unbounded"]
    loaded.publishable()
