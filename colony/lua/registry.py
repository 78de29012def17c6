"""The registry: every script by name, its header as its signature.

A header names a script's keys and arguments in order; callers give them by name, and a name that is
missing or too many is refused before anything is sent. `5+` in a header marks a list that takes the
rest.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Self

from colony.errors import ScriptError

Argument = str | bytes | int
Given = Argument | Sequence[Argument]

_SECTION = re.compile(r"^-- ([A-Z]+)$")
_PARAMETER = re.compile(r"^--   (\d+)(\+?) +(\w+)  +\S")
_TOKEN = re.compile(r"^--   (\w+)")


@dataclass(frozen=True)
class Call:
    """A script with its keys and arguments, ready to be sent."""

    script: "Script"
    keys: tuple[Argument, ...]
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Script:
    """A Lua script and what its header declares."""

    name: str
    source: bytes
    sha: str
    keys: tuple[str, ...]
    arguments: tuple[str, ...]
    variadic: frozenset[str]
    returns: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, source: bytes) -> Self:
        """The script whose text is `source`; raises ScriptError where its header is not one."""
        sections = _sections(source.decode().splitlines())
        title, _, _ = sections["TITLE"][0].removeprefix("-- ").partition(":")
        if title != name:
            raise ScriptError(detail=f"{name}.lua calls itself {title!r}")
        keys, open_keys = _parameters(name, sections.get("KEYS", []))
        arguments, open_arguments = _parameters(name, sections.get("ARGV", []))
        return cls(
            name=name,
            source=source,
            sha=hashlib.sha1(source, usedforsecurity=False).hexdigest(),
            keys=keys,
            arguments=arguments,
            variadic=frozenset((*open_keys, *open_arguments)),
            returns=tuple(m[1] for line in sections["RETURNS"] if (m := _TOKEN.match(line))),
        )

    def bind(self, **given: Given) -> Call:
        """The call of this script with keys and arguments; raises TypeError on a wrong name."""
        wanted = {*self.keys, *self.arguments}
        if wanted != given.keys():
            missing, extra = wanted - given.keys(), given.keys() - wanted
            raise TypeError(f"{self.name}: missing {sorted(missing)}, unknown {sorted(extra)}")
        return Call(self, self._flatten(self.keys, given), self._flatten(self.arguments, given))

    def _flatten(self, names: Iterable[str], given: Mapping[str, Given]) -> tuple[Argument, ...]:
        flat: list[Argument] = []
        for name in names:
            value = given[name]
            if isinstance(value, (str, bytes, int)):
                flat.append(value)
            elif name in self.variadic:
                flat.extend(value)
            else:
                raise TypeError(f"{self.name}: {name} takes one value")
        return tuple(flat)


@cache
def scripts() -> Mapping[str, Script]:
    """Every script of the package by name."""
    found = (path for path in files("colony.lua").iterdir() if path.name.endswith(".lua"))
    names = {path.name.removesuffix(".lua"): path for path in found}
    return {name: Script.parse(name, path.read_bytes()) for name, path in sorted(names.items())}


def bind(name: str, /, **given: Given) -> Call:
    """The call of the script `name` with these keys and arguments."""
    return scripts()[name].bind(**given)


def _sections(lines: Iterable[str]) -> Mapping[str, list[str]]:
    sections: dict[str, list[str]] = {"TITLE": []}
    current = sections["TITLE"]
    for line in lines:
        if line.startswith("#!"):
            continue
        if not line.startswith("--"):
            break
        if match := _SECTION.match(line):
            current = sections.setdefault(match[1], [])
        else:
            current.append(line)
    return sections


def _parameters(name: str, lines: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    matches = [match for line in lines if (match := _PARAMETER.match(line))]
    for position, match in enumerate(matches, start=1):
        last = position == len(matches)
        if int(match[1]) != position or (match[2] and not last):
            raise ScriptError(detail=f"{name}.lua numbers its {match[3]!r} wrongly")
    return (
        tuple(match[3] for match in matches),
        tuple(match[3] for match in matches if match[2]),
    )
