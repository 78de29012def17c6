"""Cell params: what the type of a cell says of the `params` a tree gives it, and of its files."""

from collections.abc import Callable

from pydantic import JsonValue

from colony import cell as cells
from colony.errors import TopologyError
from colony.topology.documents import check
from colony.topology.findings import Findings, Place
from colony.topology.model import CellSpec
from colony.topology.substitution import Substituted


def check_type(name: str, place: Place, findings: Findings) -> type[cells.Cell] | None:
    """The cell type called `name`, or None with a finding where it is not to be had."""
    try:
        return cells.cell_type(name)
    except TopologyError:
        sentence = f"No cell type {name!r} is installed."
    except (ImportError, AttributeError) as error:
        sentence = f"The cell type {name!r} cannot be imported: {error}."
    findings.error(place.at("cell", "type"), "unknown_cell_type", sentence)
    return None


def check_params(
    kind: type[cells.Cell], params: Substituted, place: Place, findings: Findings
) -> bool:
    """Whether the params are complete and the cell type takes them.

    Adds a finding for everything it refuses; unset variables are given the benefit.
    """
    value: JsonValue = params.value
    fit = check(kind.Params, value, place.at("params"), findings, excused=params.failed)
    return fit is not None and not params.failed(())


def begins_traces(kind: type[cells.Cell]) -> bool:
    """Whether cells of this type make envelopes of their own."""
    return kind.run is not cells.Cell.run


def check_flaws(
    kind: type[cells.Cell],
    spec: CellSpec,
    places: Callable[[str], Place],
    findings: Findings,
) -> None:
    """Add a finding for everything else the cell type finds wrong with a cell.

    `places` gives the place of a file of the cell.
    """
    isolation = spec.cell.isolation
    if isolation is not None and isolation not in kind.isolations:
        sentence = f"A cell of type {spec.cell.type} cannot be handled as {isolation!r}."
        findings.error(
            places("config.json").at("cell", "isolation"), "isolation_unavailable", sentence
        )
    for flaw in kind.flaws(spec):
        findings.flaw(places(flaw.file), flaw)
