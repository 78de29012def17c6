"""The public surface: what a cell type is written with, at no cost before it is used."""

import subprocess
import sys

import pytest

import colony

PUBLIC = {
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
}


def test_the_public_names_are_these() -> None:
    assert set(colony.__all__) == PUBLIC
    assert dir(colony) == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_the_class_of_that_name(name: str) -> None:
    found = getattr(colony, name)

    assert found.__name__ == name
    assert getattr(sys.modules[found.__module__], name) is found
    assert found.__doc__


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        colony.Nothing  # noqa: B018


def test_importing_the_package_loads_nothing_else() -> None:
    program = "import sys, colony; print(*(name for name in sys.modules if 'colony' in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.split() == ["colony"]
