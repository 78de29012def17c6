"""Lint: what of a sound tree would stall, leak or be silently skipped once it runs."""

from colony.topology.draft import Draft
from colony.topology.findings import Findings
from colony.topology.lint_doubled import lint_doubled
from colony.topology.lint_edges import lint_edges
from colony.topology.lint_lanes import lint_lanes
from colony.topology.lint_loops import lint_loops
from colony.topology.lint_origins import lint_origins
from colony.topology.lint_overlap import lint_overlap
from colony.topology.lint_quiet import lint_quiet


def lint(draft: Draft, findings: Findings) -> None:
    """Add a warning for each thing that validation cannot refuse and a run would trip over."""
    lint_edges(draft, findings)
    lint_lanes(draft, findings)
    lint_overlap(draft, findings)
    lint_doubled(draft, findings)
    lint_origins(draft, findings)
    lint_loops(draft, findings)
    lint_quiet(draft, findings)
