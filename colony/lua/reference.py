"""The reference of all scripts, as their headers tell it: `python -m colony.lua.reference`."""

from collections.abc import Iterator
from itertools import takewhile

from colony.lua.registry import Script, scripts

_INTRODUCTION = """\
# Scripts

Every change of state in Redis is one of these scripts: it happens whole or not at all. This page is
made of their headers by `python -m colony.lua.reference`; a test holds headers and code together.

A script that begins `#!lua` is refused whole where the server is out of memory; one that begins
`#!lua flags=allow-oom` drains work and is let through.
"""


def render() -> str:
    """The page as Markdown."""
    return "\n".join([_INTRODUCTION, *("\n".join(_section(s)) for s in scripts().values())])


def _section(script: Script) -> Iterator[str]:
    shebang, title, *rest = script.source.decode().splitlines()
    _, _, sentence = title.partition(": ")
    header = takewhile(lambda line: line.startswith("--"), rest)
    yield f"## {script.name}\n"
    yield sentence[0].upper() + sentence[1:] + f" `{shebang}`\n"
    yield "```text"
    yield "\n".join(line.removeprefix("--").removeprefix(" ") for line in header).strip("\n")
    yield "```\n"


if __name__ == "__main__":
    print(render(), end="")
