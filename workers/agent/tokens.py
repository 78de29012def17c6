"""Tokens: about how many a request has, before any model has counted them."""

import json
from collections.abc import Iterable, Mapping

from colony.body import Entry
from colony.topology.model import ToolDeclaration
from workers.toolloop.eviction import size_of

BYTES_PER_TOKEN = 4
# What a provider puts around a message, a call or a tool.
AROUND = 4


def of_text(text: str | None) -> int:
    """Those of a text."""
    return size_of(text) // BYTES_PER_TOKEN


def of_entries(entries: Iterable[Entry]) -> int:
    """Those of entries, with what a provider wants back with them."""
    return sum(AROUND + of_text(entry.text) + _of_vendor(entry) for entry in entries)


def of_tools(tools: Mapping[str, ToolDeclaration]) -> int:
    """Those of the tools that a model is offered: names, descriptions and schemas."""
    return sum(map(_of_tool, tools.values()))


def of_request(persona: str, entries: Iterable[Entry], tools: Mapping[str, ToolDeclaration]) -> int:
    """Those of a complete request."""
    return AROUND + of_text(persona) + of_entries(entries) + of_tools(tools)


def _of_tool(tool: ToolDeclaration) -> int:
    schema = json.dumps(tool.parameters, ensure_ascii=False)
    return AROUND + of_text(f"{tool.name}{tool.description}{schema}")


def _of_vendor(entry: Entry) -> int:
    return of_text(json.dumps(entry.vendor, ensure_ascii=False)) if entry.vendor else 0
