"""Hop trees: the log of a trace as a tree, each hop below the one it came of."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from colony.records import HopRecord


@dataclass(slots=True)
class HopNode:
    """A hop and the hops that came of it. `size` counts them all, itself included."""

    record: HopRecord
    children: list["HopNode"] = field(default_factory=list)
    size: int = 1

    def to_json(self) -> dict[str, JsonValue]:
        """The hop as the message log shows it, with those that came of it."""
        children: list[JsonValue] = [child.to_json() for child in self.children]
        return {**self.record.to_json(), "children": children}


def hop_trees(records: Sequence[HopRecord]) -> list[HopNode]:
    """The trees of a log: one for its first message, one for each revival or replay."""
    nodes: dict[str, HopNode] = {}
    roots: list[HopNode] = []
    for record in records:
        node = HopNode(record)
        parent = nodes.get(record.head.parent_message_id or "")
        (roots if parent is None else parent.children).append(node)
        # A message that was replayed is in the log twice; what follows came of the second.
        nodes[record.head.id] = node
    for root in roots:
        _measure(root)
    return roots


@dataclass(frozen=True, slots=True)
class Chain:
    """Hops that came one of the other, with no fork among them.

    `stem` leads to it; `beside` tells that it stands beside the branch that goes on.
    """

    stem: str
    beside: bool
    records: tuple[HopRecord, ...]

    @property
    def first(self) -> str:
        """What is drawn before the first hop."""
        return self.stem + ("├─ " if self.beside else "")

    @property
    def rest(self) -> str:
        """What is drawn before the others."""
        return self.stem + ("│  " if self.beside else "")


def chains(roots: Iterable[HopNode]) -> Iterator[Chain]:
    """The trees as chains, from the first hop on.

    The longest branch goes straight on below the fork, however long it gets; shorter ones are drawn
    beside it first.
    """
    ahead = [("", False, root) for root in reversed(list(roots))]
    while ahead:
        stem, beside, node = ahead.pop()
        records = [node.record]
        while len(node.children) == 1:
            node = node.children[0]
            records.append(node.record)
        chain = Chain(stem, beside, tuple(records))
        yield chain
        branches = sorted(node.children, key=lambda child: child.size)
        onward = [(chain.rest, True, child) for child in branches[:-1]]
        onward += [(chain.rest, False, child) for child in branches[-1:]]
        ahead.extend(reversed(onward))


def _measure(root: HopNode) -> None:
    order = [root]
    for node in order:
        order.extend(node.children)
    for node in reversed(order):
        node.size = 1 + sum(child.size for child in node.children)
