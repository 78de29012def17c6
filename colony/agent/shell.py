"""Shell: how a command line falls into the commands that it runs, as far as can be told.

It is read to judge it, not to run it: whatever is not plain is said to be so, and is then asked
about.
"""

from dataclasses import dataclass
from typing import Final

# What runs another command that follows its options and values, and the options that take a value.
_WRAPPERS: Final = {
    "timeout": frozenset({"-k", "--kill-after", "-s", "--signal"}),
    "time": frozenset({"-f", "--format", "-o", "--output"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "stdbuf": frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}),
    "ionice": frozenset({"-c", "--class", "-n", "--classdata"}),
}
# How many words of a wrapper come before the command, beside its options.
_LEADING: Final = {"timeout": 1}

_SEPARATORS: Final = frozenset(";|&\n")
_GROUPING: Final = frozenset("(){}<>`")


@dataclass(frozen=True, slots=True)
class Segment:
    """One command of a line. `plain` says that it does nothing beyond what its words say."""

    text: str
    plain: bool


def segments(line: str) -> list[Segment]:
    """The commands that a line runs, wrappers taken off; none of a line without any.

    Split at `&&`, `||`, `;`, `|`, `&` and newlines that are not quoted.
    """
    found: list[Segment] = []
    begin, at, plain, quote = 0, 0, True, ""
    while at < len(line):
        char = line[at]
        if quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\":
            at += 1
        elif quote == '"':
            plain = plain and not _expands(line, at)
            quote = "" if char == '"' else quote
        elif char in "'\"":
            quote = char
        elif char in _SEPARATORS:
            found.append(Segment(line[begin:at], plain))
            begin, plain = at + 1, True
        else:
            plain = plain and char not in _GROUPING and not _expands(line, at)
        at += 1
    found.append(Segment(line[begin:], plain and not quote))
    return [
        Segment(_unwrapped(segment.text), segment.plain)
        for segment in found
        if segment.text.strip()
    ]


def _expands(line: str, at: int) -> bool:
    """Whether something is substituted here that is not in the line."""
    return line[at] == "`" or line.startswith(("$(", "${"), at)


def _unwrapped(text: str) -> str:
    """A command without what only runs it: `timeout 5 ls` is `ls`."""
    words = text.split()
    while len(words) > 1 and words[0] in _WRAPPERS:
        rest = _behind(words)
        if not rest:
            break
        words = rest
    return " ".join(words)


def _behind(words: list[str]) -> list[str]:
    wrapper, at = words[0], 1
    while at < len(words) and (words[at].startswith("-") or _assigns(wrapper, words[at])):
        at += 2 if words[at] in _WRAPPERS[wrapper] else 1
    return words[at + _LEADING.get(wrapper, 0) :]


def _assigns(wrapper: str, word: str) -> bool:
    return wrapper == "env" and "=" in word
