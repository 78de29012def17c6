"""Trees with a change in one of their cells."""

from collections.abc import Mapping
from typing import Any

from colony.topology.model import TopologySpec


def with_params(spec: TopologySpec, path: str, params: Mapping[str, Any]) -> TopologySpec:
    """The tree with other params for one cell."""
    cells = tuple(
        cell.model_copy(update={"params": dict(params)}) if cell.path == path else cell
        for cell in spec.cells
    )
    assert cells != spec.cells
    return spec.model_copy(update={"cells": cells})
