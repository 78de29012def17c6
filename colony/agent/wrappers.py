"""Wrappers: commands that only run another one, with what is known of their options."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
# It takes any name, also one that no shell would.
_OF_ENV: Final = re.compile(r"[^=]*=")


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """How many words come before the command that is run, and whether they set variables for it."""

    skipped: int
    assigns: bool


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """The options that take a value, those that take none, and how many words come behind them."""

    valued: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()
    leading: int = 0
    alike: re.Pattern[str] | None = None


# What writes, changes another process or runs a text is left out: a command with it is asked about.
_WRAPPERS: Final = {
    "timeout": _Wrapper(
        frozenset(("-k", "--kill-after", "-s", "--signal")),
        frozenset(("--foreground", "--preserve-status", "-v", "--verbose")),
        leading=1,
    ),
    "time": _Wrapper(frozenset(("-f", "--format")), frozenset(("-p", "-v", "--verbose"))),
    "nice": _Wrapper(frozenset(("-n", "--adjustment")), alike=re.compile(r"-\d+")),
    "env": _Wrapper(
        frozenset(("-u", "--unset")), frozenset(("-", "-i", "--ignore-environment", "-0", "--null"))
    ),
    "stdbuf": _Wrapper(frozenset(("-i", "--input", "-o", "--output", "-e", "--error"))),
    "ionice": _Wrapper(
        frozenset(("-c", "--class", "-n", "--classdata")), frozenset(("-t", "--ignore"))
    ),
}

WRAPPERS: Final = tuple(_WRAPPERS)


def unwrapped(words: Sequence[str]) -> Unwrapped | None:
    """What comes before the command that is run in the end: of `timeout 5 ls` that is two words.

    None where a wrapper has an option that is not known here.
    """
    at, assigns, assignment = 0, False, _ASSIGNMENT
    while True:
        behind = _behind_assignments(words, at, assignment)
        assigns, at = assigns or behind > at, behind
        wrapper = _WRAPPERS.get(words[at]) if at + 1 < len(words) else None
        if wrapper is None:
            return Unwrapped(at, assigns)
        assignment = _OF_ENV if words[at] == "env" else _ASSIGNMENT
        end = _behind_options(words, at + 1, wrapper)
        if end is None:
            return None
        at = end + wrapper.leading


def _behind_assignments(words: Sequence[str], at: int, assignment: re.Pattern[str]) -> int:
    while at < len(words) and assignment.match(words[at]):
        at += 1
    return at


def _behind_options(words: Sequence[str], at: int, wrapper: _Wrapper) -> int | None:
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        name, has_value, _ = word.partition("=")
        if word == "--":
            return at + 1
        if word in wrapper.valued:
            at += 2
        elif word in wrapper.alone or (wrapper.alike and wrapper.alike.fullmatch(word)):
            at += 1
        elif (has_value and name in wrapper.valued) or _is_attached(word, wrapper):
            at += 1
        else:
            return None
    return at


def _is_attached(word: str, wrapper: _Wrapper) -> bool:
    """Whether a value stands right behind its option, as in `-k5`."""
    return not word.startswith("--") and word[:2] in wrapper.valued
