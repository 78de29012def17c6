"""Loops under lint: what bounds them, and whether the ttl budget lasts that long.

A store only answers what it is asked, so a conversation with one is no loop; it is part of the
cost of the cell that holds it. A proxy or a timer starts a trace with whatever it emits.
"""

from collections.abc import Iterable, Mapping, Sequence

from colony.topology.draft import Draft, DraftEdge, is_quiet
from colony.topology.findings import Findings

# Searching for the longest way is exponential; beyond so many steps the best found so far counts.
MAX_STEPS = 1_000
# What an edge into a store costs: a request and what its answer leads to, each there and back. So
# the classic protocol (insert, select; claim, select) over two edges comes to its eight hops.
STORE_HOPS = 4

# What leaves a cell of these types does not go on with what reached it.
_ENDS = frozenset({"store", "proxy", "timer"})


def lint_loops(draft: Draft, findings: Findings) -> None:
    """Add a warning for each loop without a bound, and each whose bound the ttl does not reach."""
    steps = [edge for edge in draft.edges if _is_step(draft, edge)]
    for loop in _loops(steps):
        inside = _inside(loop, steps)
        if loop & draft.doubtful or any(edge.compiled is None for edge in inside):
            continue
        bounds = {edge: limit for edge in inside if (limit := _bound(edge, inside)) is not None}
        for edge, limit in bounds.items():
            _check_budget(draft, edge, limit, inside, steps, findings)
        free = [edge for edge in inside if edge not in bounds]
        for rest in _loops(free):
            members = ", ".join(sorted(rest))
            sentence = (
                f"Nothing bounds the loop of {members}: no edge of it compares a count of rounds"
                " in context with a limit."
            )
            edge = _re_entry(draft, _inside(rest, free))
            findings.warning(edge.place, "loop_unbounded", sentence)


def _is_step(draft: Draft, edge: DraftEdge) -> bool:
    cell = draft.cells.get(edge.source)
    if is_quiet(edge.source) or (cell is not None and cell.spec.cell.type in _ENDS):
        return False
    return draft.defines(edge.source) and draft.defines(edge.target)


def _inside(loop: frozenset[str], edges: Iterable[DraftEdge]) -> list[DraftEdge]:
    return [edge for edge in edges if edge.source in loop and edge.target in loop]


def _loops(edges: Sequence[DraftEdge]) -> list[frozenset[str]]:
    """The sets of nodes each of which can be reached from each other of its set, over `edges`."""
    out = _targets(edges)
    reach = {
        node: set[str]().union(*(_distances(target, out) for target in targets))
        for node, targets in out.items()
    }
    loops = {
        frozenset(other for other in reach[node] if node in reach.get(other, ()))
        for node in out
        if node in reach[node]
    }
    return sorted(loops, key=sorted)


def _bound(edge: DraftEdge, inside: Sequence[DraftEdge]) -> int | None:
    """How often `edge` is taken at most: it limits a count that an edge of the loop keeps."""
    limits = edge.condition.upper_bounds if edge.condition else {}
    counted = {name for other in inside for name in _counted(other)}
    found = [
        limit for (root, name), limit in limits.items() if root == "context" if name in counted
    ]
    return min(found) if found else None


def _counted(edge: DraftEdge) -> list[str]:
    values = edge.modifier.set_context if edge.modifier else {}
    return [name for name, value in values.items() if ("context", name) in value.reads]


def _re_entry(draft: Draft, inside: Sequence[DraftEdge]) -> DraftEdge:
    """The edge that most looks like the one on which a loop starts again."""

    def rank(edge: DraftEdge) -> tuple[bool, bool]:
        cell = draft.cells.get(edge.target)
        return not _counted(edge), cell is None or cell.spec.cell.type != "llm"

    return min(inside, key=rank)


def _check_budget(
    draft: Draft,
    edge: DraftEdge,
    limit: int,
    inside: Sequence[DraftEdge],
    steps: Sequence[DraftEdge],
    findings: Findings,
) -> None:
    restores = edge.spec.modifier is not None and edge.spec.modifier.restore_ttl
    rounds = 1 if restores else max(limit, 0)
    round_hops = 1 + _longest_way(draft, edge.target, edge.source, inside)
    before, after = _entry_hops(edge.target, steps), _exit_hops(draft, edge.target, steps)
    needed, budget = before + rounds * round_hops + after, draft.settings.message_default_ttl
    if needed > budget:
        advice = "raise message_default_ttl" if restores else "restore the ttl on this edge"
        sentence = (
            f"Up to {rounds} rounds of {round_hops} hops, {before} before and {after} after, need"
            f" a ttl of {needed}; the budget is {budget}: {advice}."
        )
        findings.warning(edge.place, "loop_exceeds_ttl", sentence)


def _longest_way(draft: Draft, start: str, end: str, inside: Sequence[DraftEdge]) -> int:
    """Hops of the longest way from `start` to `end` that visits no node twice, stores included."""
    out = _targets(inside)
    steps, best = 0, 0
    ahead = [(start, frozenset({start}), _store_hops(draft, start))]
    while ahead and steps < MAX_STEPS:
        steps += 1
        node, visited, hops = ahead.pop()
        if node == end:
            best = max(best, hops)
            continue
        for target in out.get(node, ()):
            if target not in visited:
                cost = hops + 1 + _store_hops(draft, target)
                ahead.append((target, visited | {target}, cost))
    return best


def _store_hops(draft: Draft, path: str) -> int:
    """What the conversation of a cell with stores that answer it adds to a round."""
    asked = (edge.target for edge in draft.out_of.get(path, ()) if draft.is_store(edge.target))
    answered = {edge.source for edge in draft.into.get(path, ())}
    return sum(STORE_HOPS for store in asked if store in answered)


def _entry_hops(path: str, steps: Sequence[DraftEdge]) -> int:
    """Hops from outside to `path`: the way of the entry that is farthest, and its own hop."""
    out, targets = _targets(steps), {edge.target for edge in steps}
    entries = [node for node in out if node not in targets]
    return 1 + max((_distances(entry, out).get(path, 0) for entry in entries), default=0)


def _exit_hops(draft: Draft, path: str, steps: Sequence[DraftEdge]) -> int:
    """Hops from `path` to the nearest node, stores apart, that nothing leaves."""
    out = _targets(steps)
    ends = (
        hops
        for node, hops in _distances(path, out).items()
        if node not in out and not draft.is_store(node)
    )
    return min(ends, default=0)


def _targets(edges: Iterable[DraftEdge]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for edge in edges:
        found.setdefault(edge.source, {})[edge.target] = None
    return {source: tuple(targets) for source, targets in found.items()}


def _distances(origin: str, out: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Hops of the shortest way from `origin` to each node that can be reached."""
    found = {origin: 0}
    layer, hops = [origin], 0
    while layer:
        hops += 1
        ahead = dict.fromkeys(target for node in layer for target in out.get(node, ()))
        layer = [target for target in ahead if target not in found]
        found.update((target, hops) for target in layer)
    return found
