"""The scaffold: a tree of one's own to start from."""

import shutil
from pathlib import Path

from colony.errors import ConfigError
from colony.trees import shipped

STARTER = shipped("starter")


def write_tree(directory: Path) -> list[Path]:
    """Write the starter tree into `directory`, made if missing, and return its files.

    Raises ConfigError where something is in `directory` already, and nothing is written, or where
    it cannot be written to.
    """
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(detail=f"{directory} is not empty")
        shutil.copytree(
            STARTER, directory, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    except OSError as error:
        why = error.strerror or "not every file could be written"
        raise ConfigError(detail=f"{directory} cannot be written: {why}") from None
    return sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
