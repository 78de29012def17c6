"""The screen: how answers are written for people, and for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import click
from pydantic import JsonValue

# What a terminal would obey. A model is shown what others say, and so is who looks.
_OBEYED: Final = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}


def write_json(value: JsonValue) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def write_json_line(value: JsonValue) -> None:
    """One JSON document in a line, for a stream of them."""
    click.echo(json.dumps(value, ensure_ascii=False))


def table(rows: Iterable[Sequence[str]], *, indent: str = "") -> None:
    """Rows with their columns lined up."""
    kept = [[click.unstyle(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    for row in kept:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo(indent + "  ".join(cells).rstrip())


def heading(text: str) -> str:
    """A title."""
    return click.style(text, bold=True)


def faint(text: str) -> str:
    """What matters less."""
    return click.style(text, dim=True)


def bad(text: str) -> str:
    """What somebody should look at."""
    return click.style(text, fg="red")


def age(ms: int) -> str:
    """A time span in the unit that fits."""
    if ms < 1_000:
        return f"{ms} ms"
    for unit, size in (("s", 1_000), ("min", 60_000), ("h", 3_600_000)):
        if ms < size * 120:
            return f"{ms / size:.1f} {unit}" if unit == "s" else f"{ms // size} {unit}"
    return f"{ms // 86_400_000} d"


def pairs(values: Mapping[str, JsonValue], *, width: int = 40) -> str:
    """Headers in one line, long values shortened."""
    return " ".join(f"{key}={shortened(value, width)}" for key, value in values.items())


def counted(number: int, noun: str, several: str | None = None) -> str:
    """A number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {several or noun + 's'}"


def shortened(value: JsonValue, width: int) -> str:
    """A value in one line of at most `width` characters, as `legible` shows them."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return legible(text if len(text) <= width else text[: width - 1] + "…")


def legible(text: str) -> str:
    """A text in which what a terminal would obey is shown as a program writes it."""
    return text.translate(_OBEYED)


def moment(ms: int) -> str:
    """A point in time, in the zone of this host."""
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
