"""Telling: what of a call the rules are about.

Of a tool that runs commands it is each command of the line. Of any other it is the first of a few
well-known arguments that the tool declares and the call has.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.agent.shell import Command, read_line
from colony.topology.model import ToolDeclaration

SHELLS: Final = ("bash", "shell")
COMMAND: Final = "command"
PATHS: Final = ("path", "file_path")
TELLING: Final = (*PATHS, "pattern", "url", "query")

NO_COMMAND: Final = "the call has no command that could be read"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what a call does. One of `values` has to match for it to be allowed.

    `spellings` are other ways to write the same, which only count against it. With a `doubt` it is
    allowed by nothing but somebody who is asked.
    """

    values: tuple[str, ...]
    spellings: tuple[str, ...] = ()
    doubt: str = ""


def parts_of(tool: ToolDeclaration, args: Mapping[str, JsonValue]) -> Sequence[Part]:
    """What a call does, in its parts, of which there is at least one."""
    if tool.name in SHELLS or COMMAND in _declared(tool):
        command = args.get(COMMAND)
        return _commands(command) if isinstance(command, str) else [Part(("",), doubt=NO_COMMAND)]
    declared = _declared(tool) or args
    named = ((name, args.get(name)) for name in TELLING if name in declared)
    name, value = next(((n, v) for n, v in named if isinstance(v, str)), ("", ""))
    return [_path(value) if name in PATHS and value else Part((value,))]


def _declared(tool: ToolDeclaration) -> Mapping[str, JsonValue]:
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def _commands(text: str) -> Sequence[Part]:
    line = read_line(text)
    if not line.commands:
        return [Part((text.strip(),), doubt=line.doubt)]
    first, *others = (_command(command, line.doubt) for command in line.commands)
    # A rule may speak against what stands on both sides of a pipe.
    return [Part(first.values, (*first.spellings, text.strip()), first.doubt), *others]


def _command(command: Command, doubt: str) -> Part:
    return Part((command.text,), command.spellings, doubt)


def _path(written: str) -> Part:
    """A path without the detours that it was written with."""
    # Two slashes in front may mean something of their own, and nowhere do.
    path = posixpath.normpath(written).replace("//", "/", 1)
    values = (path,) if path.startswith("/") else (path, f"./{path}")
    return Part(values, (written,))
