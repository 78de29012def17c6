"""Embedding: the files of a cell's directory that are published with it, and their limits."""

import posixpath
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from colony.errors import TopologyTooLarge
from colony.topology.documents import read_text
from colony.topology.findings import Findings, Place
from colony.topology.model import TopologySpec
from colony.topology.templates import CONFIG, Folder

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_TREE_BYTES: Final = 8 * 1024 * 1024


def embedded_files(
    folder: Folder,
    params: Mapping[str, JsonValue],
    places: Callable[[str], Place],
    findings: Findings,
) -> dict[str, str]:
    """The text of the script that `params` name and of every seed, by name below the directory.

    `places` gives the place of a file of the directory, by that name.
    """
    files = folder.files("seed", ".jsonl")
    written = params.get("script_path")
    if isinstance(written, str):
        name = posixpath.normpath(written)
        script = _inside(folder, name)
        if script is not None:
            files[name] = script
        else:
            sentence = f"There is no file {written!r} in the directory of the cell."
            findings.error(places(CONFIG).at("params", "script_path"), "script_missing", sentence)
    texts = {name: read_text(file, places(name), findings) for name, file in files.items()}
    return {name: text for name, text in texts.items() if text is not None}


def oversized(spec: TopologySpec) -> Iterator[tuple[str, TopologyTooLarge]]:
    """What exceeds the limits of a publication, each with the path of its cell or the root."""
    total = 0
    for cell in spec.cells:
        for name, text in cell.files.items():
            size = len(text.encode())
            total += size
            if size > MAX_FILE_BYTES:
                what = f"file {name} of {cell.path}"
                yield cell.path, TopologyTooLarge(what=what, size=size, limit=MAX_FILE_BYTES)
    if total > MAX_TREE_BYTES:
        what = "the sum of scripts and seeds of the tree"
        yield "/", TopologyTooLarge(what=what, size=total, limit=MAX_TREE_BYTES)


def _inside(folder: Folder, name: str) -> Path | None:
    if name.startswith(("/", "..")):
        return None
    file = folder.file(name)
    # A link that leads out of the tree would publish a file of the host.
    homes = [layer.resolve() for layer in folder.layers]
    if file is None or not any(file.resolve().is_relative_to(home) for home in homes):
        return None
    return file
