"""Modules: the Python files beside a tree's `main/`, where handlers are found."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from colony.topology.findings import Findings, Place

# A tree's module of such a name takes the place of what a worker itself is made of.
OWN = ("colony", "workers")


def check_shadowing(root: Path, findings: Findings) -> None:
    """Add a finding for each module of the tree that hides one of colony's or of Python's."""
    for name, file in sorted(_modules(root)):
        place = Place(file.name + "/" if file.is_dir() else file.name)
        sentence = f"The tree's module {name!r} hides {{}} of that name; give it another one."
        if name in OWN:
            findings.error(place, "module_shadowed", sentence.format("the installed package"))
        elif name in sys.stdlib_module_names:
            findings.warning(place, "module_shadowed", sentence.format("Python's own module"))


@contextlib.contextmanager
def importable(root: Path) -> Iterator[None]:
    """Within the block modules at `root` can be imported, as a worker of the tree does.

    Nothing is left of it: no module of the tree, no compiled file, and nothing on standard output.
    """
    home, path, present = str(root.resolve()), [*sys.path], {*sys.modules}
    writes_no_bytecode = sys.dont_write_bytecode
    sys.path.insert(0, home)
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = path
        sys.dont_write_bytecode = writes_no_bytecode
        for name in sys.modules.keys() - present:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).is_relative_to(home):
                del sys.modules[name]


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    for file in root.iterdir() if root.is_dir() else ():
        if file.suffix == ".py":
            yield file.stem, file
        elif file.is_dir() and any(file.glob("*.py")):
            yield file.name, file
