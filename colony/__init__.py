"""Multi-tool LLM agents as a message topology, scaled out on Redis."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colony.body import Body, Entry
    from colony.cell import Cell
    from colony.engine import Engine, Result, Run
    from colony.envelope import Emission, Envelope
    from colony.errors import CellError, ColonyError, ToolError
    from colony.host import Host
    from colony.sync import SyncEngine, SyncRun
    from colony.topology.model import ToolDeclaration

__all__ = [
    "Body",
    "Cell",
    "CellError",
    "ColonyError",
    "Emission",
    "Engine",
    "Entry",
    "Envelope",
    "Host",
    "Result",
    "Run",
    "SyncEngine",
    "SyncRun",
    "ToolDeclaration",
    "ToolError",
]

# Loaded when first asked for: a command line that answers at once cannot import everything.
_HOMES = {
    "Body": "colony.body",
    "Cell": "colony.cell",
    "CellError": "colony.errors",
    "ColonyError": "colony.errors",
    "Emission": "colony.envelope",
    "Engine": "colony.engine",
    "Entry": "colony.body",
    "Envelope": "colony.envelope",
    "Host": "colony.host",
    "Result": "colony.engine",
    "Run": "colony.engine",
    "SyncEngine": "colony.sync",
    "SyncRun": "colony.sync",
    "ToolDeclaration": "colony.topology.model",
    "ToolError": "colony.errors",
}


def __getattr__(name: str) -> object:
    """The public name, from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
