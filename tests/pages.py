"""The pages of `docs/` about cells, and how their blocks, sections and tables are read.

A fenced block names what it is in its first line. `file=PATH` is a file of a project; `tree=NAME`
the files of a tree as one object, on top of the tree `base=NAME`; `edges=NAME` edges of that tree,
in place of those with the same ends; `without=NAME` the ends of edges that it loses; `params=PATH`
what the params of a cell of such a tree are besides; `config` the config.json of a cell.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    name: (DOCS / f"{name}.md").read_text()
    for name in ("cells", "cell-types", "compaction", "models", "tools", "window")
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with what its first line says of it."""

    language: str
    marks: Mapping[str, str]
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [
        Block(language, dict((m + "=").split("=")[:2] for m in rest.split()), text)
        for language, rest, text in found
    ]


BLOCKS = [block for page in PAGES.values() for block in blocks(page)]


def section(title: str) -> str:
    """What the one page that has this heading says below it, up to the next of its kind."""
    heading = re.compile(rf"^(##+) {re.escape(title)}$", re.MULTILINE)
    ((page, found),) = [
        (page, found) for page in PAGES.values() for found in heading.finditer(page)
    ]
    below = page[found.end() :]
    return re.split(rf"^#{{2,{len(found[1])}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str, first: str) -> list[tuple[str, ...]]:
    """The rows of the table whose first column is headed `first`."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found: list[tuple[str, ...]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append(tuple(cell.strip() for cell in line.strip("|").split(" | ")))
    return found


def named(cell: str) -> list[str]:
    """What a cell of a table lists in backticks."""
    return re.findall(r"`([^`]+)`", cell)
