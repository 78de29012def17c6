"""Processes as /proc shows them: what a call left running, whatever it did to hide."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def running_in(directory: Path) -> list[int]:
    """The processes that work in `directory`; who inherits it from a parent counts, too."""
    return [int(folder.name) for folder in _living() if _link(folder / "cwd") == str(directory)]


def children_running(program: str) -> list[int]:
    """The children of this process with `program` on their command line."""
    return [
        int(folder.name)
        for folder in _living()
        if _fields(folder)[1] == str(os.getpid())
        and program.encode() in (folder / "cmdline").read_bytes()
    ]


def _living() -> Iterator[Path]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if _fields(folder)[0] != "Z":
                    yield folder


def _fields(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
