"""Globs: patterns in which `*` is any run of characters and `?` is any one.

Every other character stands for itself. A backslash before one of the two, or before another
backslash, takes its meaning away.
"""

import re
from functools import lru_cache
from typing import Final

_MARKED: Final = "*?\\"
_TOKEN: Final = re.compile(r"\\[*?\\]|.", re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern describes all of the text."""
    return _compiled(pattern).fullmatch(text) is not None


def literal(text: str) -> str:
    """The pattern that describes this very text and no other."""
    return "".join(f"\\{char}" if char in _MARKED else char for char in text)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *others = _pieces(pattern)
    if not others:
        return re.compile(first, re.DOTALL)
    # Each piece is taken where it is found first and never again, so no text takes for ever.
    between = "".join(f"(?>.*?{piece})" for piece in others[:-1])
    return re.compile(f"{first}{between}.*{others[-1]}", re.DOTALL)


def _pieces(pattern: str) -> list[str]:
    """What stands between the stars, as regular expressions."""
    pieces = [""]
    for token in _TOKEN.findall(pattern):
        if token == "*":
            pieces.append("")
        else:
            pieces[-1] += "." if token == "?" else re.escape(token[-1])
    return pieces
