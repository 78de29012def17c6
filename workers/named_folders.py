"""Named folders: what a tree can be told beforehand of a param that names a folder of the host."""

from collections.abc import Iterator
from pathlib import Path

from colony.topology.findings import FOLDER_MISSING, Flaw
from colony.topology.model import CellSpec


def absolute_folder(spec: CellSpec, param: str) -> Iterator[Flaw]:
    """What is wrong with a folder that has to be named from the root of the host on."""
    written = str(spec.params.get(param, ""))
    if Path(written).is_absolute():
        yield from folder(spec, param)
    else:
        sentence = f"{written!r} is not absolute, and ~ stands for nothing here."
        yield Flaw("folder_relative", sentence, ("params", param))


def folder(spec: CellSpec, param: str) -> Iterator[Flaw]:
    """What is wrong with a folder that may be left out, or lie below the cell's own folder."""
    written = str(spec.params.get(param, ""))
    if Path(written).is_absolute() and not Path(written).is_dir():
        sentence = f"There is no folder {written!r} on this host."
        yield Flaw(FOLDER_MISSING, sentence, ("params", param), severity="warning")
