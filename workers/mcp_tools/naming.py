"""Naming: how a server's tools are declared to a model.

A tool is called `server__tool`, in letters that every provider takes. A name that has to be altered
gets a digest of the one it stands for, so that it depends on no other tool of the server.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from colony.arguments import DeclaredTool
from colony.envelope import digest
from colony.errors import ConfigError
from colony.log import Logger
from colony.results import head_of
from colony.topology.model import ToolDeclaration

if TYPE_CHECKING:
    from mcp_types import Tool

SEPARATOR: Final = "__"
LONGEST_NAME: Final = 64
LONGEST_PREFIX: Final = 24
LONGEST_DESCRIPTION: Final = 8_192
LARGEST_SCHEMA: Final = 65_536

# What a model can be offered by one server; providers refuse more.
MOST_TOOLS: Final = 128

_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST: Final = 6


def prefix_of(path: str) -> str:
    """What the names of the tools of the cell at `path` begin with where nothing is written."""
    segment = _OTHER.sub("_", path.rpartition("/")[2])
    while SEPARATOR in segment:
        segment = segment.replace(SEPARATOR, "_")
    return segment[:LONGEST_PREFIX].strip("_") or "mcp"


def declared_name(prefix: str, tool: str) -> str:
    """The name of a server's tool; always the same one, and another one for another tool."""
    name = f"{prefix}{SEPARATOR}{_OTHER.sub('_', tool)}"
    if len(name) <= LONGEST_NAME and name == f"{prefix}{SEPARATOR}{tool}":
        return name
    return f"{name[: LONGEST_NAME - _DIGEST - 1]}_{digest(tool)[:_DIGEST]}"


def is_offered(tool: str, *, allow: Sequence[str] | None, deny: Sequence[str]) -> bool:
    """Whether a tool is offered: allowed where a list says what is, and not denied."""
    allowed = allow is None or any(fnmatchcase(tool, pattern) for pattern in allow)
    return allowed and not any(fnmatchcase(tool, pattern) for pattern in deny)


def declarations(
    tools: Iterable["Tool"], prefix: str, *, trust_hints: bool, log: Logger
) -> Mapping[str, tuple[str, ToolDeclaration]]:
    """Each tool's own name and its declaration, by the name it is declared under.

    One that is only to be had as a task, or whose parameters are too large or no JSON Schema, is
    left out, and logged; so are those beyond the first 128.
    """
    # No further than that: a server may list any number, and each takes a while to check.
    declared = _declared(tools, prefix, trust_hints, log)
    found = {tool.name: (name, tool) for name, tool in islice(declared, MOST_TOOLS)}
    if next(declared, None) is not None:
        log.warning("mcp_tools_left_out", offered=MOST_TOOLS)
    return found


def _declared(
    tools: Iterable["Tool"], prefix: str, trust_hints: bool, log: Logger
) -> Iterator[tuple[str, ToolDeclaration]]:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            continue
        seen.add(tool.name)
        if tool.execution is not None and tool.execution.task_support == "required":
            log.info("mcp_tool_left_out", tool=tool.name, detail="it runs as a task only")
            continue
        try:
            declaration = _declaration(tool, prefix, trust_hints)
        except ConfigError as error:
            log.warning("mcp_tool_left_out", tool=tool.name[:LONGEST_NAME], detail=str(error))
            continue
        yield tool.name, declaration


def _declaration(tool: "Tool", prefix: str, trust_hints: bool) -> ToolDeclaration:
    hints = tool.annotations
    if len(json.dumps(tool.input_schema)) > LARGEST_SCHEMA:
        raise ConfigError(detail=f"its schema has more than {LARGEST_SCHEMA} characters")
    try:
        declaration = ToolDeclaration(
            name=declared_name(prefix, tool.name),
            description=head_of(tool.description or tool.title or tool.name, LONGEST_DESCRIPTION),
            parameters=tool.input_schema,
            read_only=trust_hints and hints is not None and hints.read_only_hint is True,
        )
    except ValidationError:
        # Of what nests too deep every level would be named.
        raise ConfigError(detail="its schema nests too deep") from None
    DeclaredTool.of_stranger(declaration)
    return declaration
