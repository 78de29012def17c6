"""Trees: where the colonies and templates that ship with this distribution lie."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def shipped(*parts: str) -> Path:
    """The folder or file `parts` of what ships: below `config/`, or package data in a wheel."""
    packaged = _PACKAGE / "shipped"
    home = packaged if packaged.is_dir() else _PACKAGE.parent / "config"
    return home.joinpath(*parts)
