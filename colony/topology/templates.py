"""Templates: how the files of a template come to lie under the files of a hive."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pydantic import JsonValue

CONFIG = "config.json"

# What stands in every template for the path of the hive that it is laid into.
OWN_PATH = "hive"

_SKIPPED = frozenset({"templates", "blobs", "__pycache__"})
_PARAMETER = re.compile(r"\$\{with\.([A-Za-z_][A-Za-z0-9_-]*)")


@dataclass(frozen=True)
class Folder:
    """A directory of a tree together with what templates lay under it.

    Of files with the same name the one of the first layer counts: what the tree itself holds wins.
    `handed` is what `${with.name}` stands for here; `laid` names the templates on the way here.
    """

    layers: tuple[Path, ...]
    handed: Mapping[str, JsonValue] = field(default_factory=dict)
    laid: tuple[str, ...] = ()

    def file(self, name: str) -> Path | None:
        """The file called `name` that counts."""
        found = (layer / name for layer in self.layers if (layer / name).is_file())
        return next(found, None)

    def files(self, folder: str, suffix: str) -> dict[str, Path]:
        """The files of the subdirectory `folder` that end in `suffix`, by their name below here."""
        found: dict[str, Path] = {}
        for layer in self.layers:
            for file in sorted((layer / folder).glob(f"*{suffix}")):
                found.setdefault(f"{folder}/{file.name}", file)
        return dict(sorted(found.items()))

    def folders(self) -> dict[str, "Folder"]:
        """The subdirectories that may hold cells, by name."""
        layers: dict[str, list[Path]] = {}
        for layer in self.layers:
            for directory in sorted(layer.iterdir()):
                if directory.is_dir() and not _is_skipped(directory.name):
                    layers.setdefault(directory.name, []).append(directory)
        return {name: replace(self, layers=tuple(found)) for name, found in sorted(layers.items())}

    def lay(self, template: str, directory: Path, handed: Mapping[str, JsonValue]) -> Self:
        """This directory with the files of a template under its own."""
        return replace(
            self,
            layers=(*self.layers, directory),
            handed={**self.handed, **handed},
            laid=(*self.laid, template),
        )

    def parameters(self) -> frozenset[str]:
        """The names that the files here ask for as `${with.name}`."""
        texts = (
            file.read_text(encoding="utf-8", errors="replace")
            for layer in self.layers
            for file in layer.rglob(CONFIG)
        )
        return frozenset(name for text in texts for name in _PARAMETER.findall(text))

    def holds_cells(self) -> bool:
        """Whether a `config.json` lies here or somewhere below."""
        return any(True for layer in self.layers for _ in layer.rglob(CONFIG))


def find_template(name: str, homes: Sequence[Path]) -> Path | None:
    """The folder of the template `name` in the first of `homes` that has it."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return None
    found = (home.joinpath(*parts) for home in homes)
    return next((folder for folder in found if (folder / CONFIG).is_file()), None)


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED
