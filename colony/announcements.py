"""Announcements: the tools of cells that learn them only while they run, known to every worker.

An announcement belongs to the path of its cell. It stands until the cell announces something else,
whoever hosts it, or until a tree without the cell is published: a host that dies takes none along.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from colony.arguments import DeclaredTool
from colony.body import explain
from colony.errors import ConfigError
from colony.keys import Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import bind
from colony.topology.model import ToolDeclaration

Tools = tuple[DeclaredTool, ...]

_TOOLS: Final = TypeAdapter(tuple[ToolDeclaration, ...])
_VERSION: Final = "version"

log = get_logger("colony.announcements")


class Announcements:
    """What the cells of one partition announced, as this process knows it."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._version = 0
        self._known: Mapping[str, Tools] = {}
        # What cells of this process announced: a server that lost it is told again.
        self._own: dict[str, bytes] = {}

    def of(self, path: str) -> Tools:
        """The tools that the cell at `path` announced last; none where it never did."""
        return self._known.get(path, ())

    async def announce(self, path: str, tools: Sequence[ToolDeclaration]) -> None:
        """The tools of the cell at `path` are these. Announcing the same again changes nothing.

        Raises ConfigError, and announces nothing, where the parameters of one are no JSON Schema.
        """
        self._known = {**self._known, path: tuple(DeclaredTool.of_stranger(tool) for tool in tools)}
        self._own[path] = _TOOLS.dump_json(tuple(tools), exclude_defaults=True)
        await self._write(path)

    async def refresh(self) -> bool:
        """Take up what was announced since; tells whether anything was."""
        key = self._keys.announced()
        version = int(await self._link.command("HGET", key, _VERSION) or 0)
        if version == self._version:
            return False
        flat = await self._link.command("HGETALL", key)
        found = {k.decode(): v for k, v in zip(flat[::2], flat[1::2], strict=True)}
        self._version = int(found.pop(_VERSION, 0))
        lost = self._own.keys() - found.keys()
        own = {path: self.of(path) for path in lost}
        self._known = {path: _read(path, data) for path, data in found.items()} | own
        for path in lost:
            await self._write(path)
        return True

    def disown(self, path: str) -> None:
        """The cell at `path` runs here no more; what it announced stands."""
        self._own.pop(path, None)

    async def _write(self, path: str) -> None:
        announced = self._keys.announced()
        await self._link.run(
            bind("announce", announced=announced, path=path, tools=self._own[path])
        )


async def withdraw(link: Link, keys: Keys, kept: Collection[str]) -> None:
    """Nothing is announced any more but by the cells at the paths that are `kept`."""
    fields = [field.decode() for field in await link.command("HKEYS", keys.announced())]
    gone = [field for field in fields if field not in kept and field != _VERSION]
    if gone:
        await link.command("HDEL", keys.announced(), *gone)


def _read(path: str, data: bytes) -> Tools:
    try:
        return tuple(DeclaredTool.of_stranger(tool) for tool in _TOOLS.validate_json(data))
    except (ValidationError, ConfigError) as error:
        # Announced by a newer colony, most likely.
        detail = explain(error) if isinstance(error, ValidationError) else str(error)
        log.error("announcement_unreadable", cell=path, detail=detail)
        return ()
