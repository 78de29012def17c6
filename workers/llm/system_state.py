"""System state: the tree of texts a model is told before the thread, kept leaf by leaf.

A message brings any part of the tree; each leaf it brings replaces the leaf at that path, and a
node marked `"$replace": true` first clears everything at and below it. A leaf lies at the dotted
path of its keys, below `system` (meclaw, llm cell).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue

from colony.errors import BodyError
from workers.llm.provider import Tool

ROOT = "system"
TOOLS = "system.tools"
REPLACE = "$replace"


@dataclass(frozen=True, slots=True)
class Change:
    """Leaves to put, and paths to clear before that."""

    put: dict[str, str] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)

    def applied_to(self, state: Mapping[str, str]) -> dict[str, str]:
        """What `state` becomes by this change."""
        left = {
            path: text
            for path, text in state.items()
            if not any(at_or_below(path, gone) for gone in self.remove)
        }
        return {**left, **self.put}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a system state may hold; `writable` lists dotted paths, and nothing means all."""

    max_slots: int
    max_leaf_bytes: int
    writable: tuple[str, ...]

    def check(self, change: Change, state: Mapping[str, str]) -> None:
        """Returns if `change` is allowed on top of `state`; raises BodyError otherwise."""
        for path in (*change.put, *change.remove):
            if self.writable and not any(at_or_below(path, f"{ROOT}.{w}") for w in self.writable):
                raise BodyError(detail=f"{path} is not writable")
        for path, text in change.put.items():
            if len(text.encode(errors="replace")) > self.max_leaf_bytes:
                raise BodyError(detail=f"{path} has more than {self.max_leaf_bytes} bytes")
        slots = sum(at_or_below(path, ROOT) for path in change.applied_to(state))
        if slots > self.max_slots:
            raise BodyError(
                detail=f"system would have {slots} leaves; {self.max_slots} are allowed"
            )


def parse(system: Mapping[str, JsonValue]) -> Change:
    """The change that a `system` slot asks for; raises BodyError where it is malformed."""
    change = Change()
    for path, node in _walk(ROOT, system):
        for key in node:
            if key.startswith("$") and (key != REPLACE or not isinstance(node[key], bool)):
                raise BodyError(detail=f"{path} has {key}, which only {REPLACE}: true may be")
        if node.get(REPLACE):
            change.remove.append(path)
        text = node.get("text")
        if isinstance(text, str):
            change.put[path] = text
    return change


def render(state: Mapping[str, str], order: Sequence[str]) -> str | None:
    """The texts of `state` joined by blank lines, tools left out; None where there is none.

    Top-level keys named by `order` come first, the others follow by name.
    """
    ranks = {key: rank for rank, key in enumerate(order)}

    def place(path: str) -> tuple[int, list[str]]:
        keys = path.split(".")[1:]
        return ranks.get(_written(keys[0]), len(ranks)) if keys else -1, keys

    shown = [
        path
        for path, text in state.items()
        if at_or_below(path, ROOT) and not at_or_below(path, TOOLS) and text
    ]
    return "\n\n".join(state[path] for path in sorted(shown, key=place)) or None


def tools(state: Mapping[str, str]) -> tuple[Tool, ...]:
    """The tools that `state` defines, by name; raises BodyError where one cannot be read."""
    paths = sorted(path for path in state if at_or_below(path, TOOLS) and state[path])
    return tuple(_tool(path, state[path]) for path in paths)


def at_or_below(path: str, root: str) -> bool:
    """Whether a leaf path is `root` or lies below it."""
    return path == root or path.startswith(f"{root}.")


def _walk(
    path: str, node: Mapping[str, JsonValue]
) -> Iterator[tuple[str, Mapping[str, JsonValue]]]:
    yield path, node
    below = {key: child for key, child in node.items() if not key.startswith("$")}
    if isinstance(below.get("text"), str):
        if len(below) > 1 or path == ROOT:
            raise BodyError(detail=f"{path} has a text beside other keys")
        return
    for key, child in below.items():
        if not isinstance(child, dict):
            raise BodyError(detail=f"{path}.{key} is neither a node nor a leaf with a text")
        yield from _walk(f"{path}.{_escaped(key)}", child)


def _tool(path: str, text: str) -> Tool:
    try:
        definition = json.loads(text)
        name = definition["function"]["name"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise BodyError(detail=f"{path} is not the JSON of a tool definition") from None
    if not isinstance(name, str) or not name:
        raise BodyError(detail=f"{path} has no function name")
    return Tool(name, cast(dict[str, JsonValue], definition))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace(".", "~1")


def _written(key: str) -> str:
    return key.replace("~1", ".").replace("~0", "~")
