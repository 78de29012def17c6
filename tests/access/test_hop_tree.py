"""Hop trees: how the log of a trace is drawn."""

from colony.access.hop_tree import chains, hop_trees
from colony.envelope import Head
from colony.records import HopRecord


def hop(id: str, parent: str | None = None) -> HopRecord:
    head = Head(id=id, trace_id="t", target=f"/{id}", ttl=9, parent_message_id=parent)
    return HopRecord("1-0", head, None, None)


def drawn(*records: HopRecord) -> list[str]:
    lines = []
    for chain in chains(hop_trees(records)):
        stem = chain.first
        for record in chain.records:
            lines.append(stem + record.head.id)
            stem = chain.rest
    return lines


def test_a_straight_trace_is_never_indented() -> None:
    records = [hop("0"), *(hop(str(n), str(n - 1)) for n in range(1, 500))]

    assert drawn(*records) == [str(n) for n in range(500)]


def test_short_branches_stand_beside_the_one_that_goes_on() -> None:
    records = [hop("a"), hop("long", "a"), hop("x", "a"), hop("y", "x"), hop("on", "long"),
               hop("end", "on"), hop("z", "a")]  # fmt: skip

    assert drawn(*records) == ["a", "├─ z", "├─ x", "│  y", "long", "on", "end"]


def test_a_fork_in_a_branch_stays_within_it() -> None:
    records = [hop("a"), hop("main", "a"), *(hop(f"m{n}", "main") for n in range(4)),
               hop("side", "a"), hop("s1", "side"), hop("s2", "side")]  # fmt: skip

    assert drawn(*records) == [
        "a", "├─ side", "│  ├─ s1", "│  s2", "main", "├─ m0", "├─ m1", "├─ m2", "m3",
    ]  # fmt: skip


def test_a_revival_is_a_tree_of_its_own() -> None:
    assert drawn(hop("a"), hop("b", "a"), hop("revived"), hop("c", "revived")) == [
        "a", "b", "revived", "c",
    ]  # fmt: skip


def test_a_hop_whose_parent_is_gone_is_a_root() -> None:
    assert [node.record.head.id for node in hop_trees([hop("b", "gone")])] == ["b"]


def test_what_follows_a_replayed_message_came_of_its_second_hop() -> None:
    first, second = hop_trees([hop("a"), hop("a"), hop("b", "a")])

    assert (len(first.children), len(second.children)) == (0, 1)
