"""Cell params: what the type of a cell says of the `params` a tree gives it."""

from pydantic import JsonValue

from colony import cell as cells
from colony.errors import TopologyError
from colony.topology.documents import check
from colony.topology.findings import Findings, Place
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
) -> None:
    """Add a finding for everything the cell type refuses; unset variables are given the benefit."""
    value: JsonValue = params.value
    check(kind.Params, value, place.at("params"), findings, excused=params.failed)
