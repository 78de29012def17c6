"""The quiet lane under lint: traces that it does not take up, for all that it takes up others."""

from colony.topology.draft import Draft, DraftEdge
from colony.topology.findings import Findings
from colony.topology.model import QUIET

ENTRY = ("hop", "entry")


def lint_quiet(draft: Draft, findings: Findings) -> None:
    """Add a warning for each cell that begins traces of its own, which lead to where the quiet lane
    takes up other traces and not these."""
    lane = draft.out_of.get(QUIET, ())
    for path, cell in draft.cells.items():
        if not cell.begins_traces or path in draft.doubtful or any(_takes(e, path) for e in lane):
            continue
        reached = _reached(draft, path)
        for edge in lane:
            if any(entry in reached for entry in _entries(edge) or ()):
                sentence = f"What {path} begins is not taken up here: hop.entry is {path!r} then."
                findings.warning(edge.place.at("condition"), "quiet_entry_missing", sentence)


def _takes(edge: DraftEdge, entry: str) -> bool:
    entries = _entries(edge)
    return entries is None or entry in entries


def _entries(edge: DraftEdge) -> tuple[object, ...] | None:
    """The entries whose traces an edge takes, or None where it looks at something else."""
    if edge.condition is None or edge.condition.undeclared:
        return None
    return edge.condition.comparisons.get(ENTRY)


def _reached(draft: Draft, path: str) -> set[str]:
    reached, ahead = {path}, [path]
    while ahead:
        for edge in draft.out_of.get(ahead.pop(), ()):
            if edge.target not in reached:
                reached.add(edge.target)
                ahead.append(edge.target)
    return reached
