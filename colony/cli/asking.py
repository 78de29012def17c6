"""Asking: how an ask of an agent is put to a person, and what counts as an answer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from colony.agent.asks import Verdict

QUESTION: Final = "y once, a always, n no, e edit the arguments"

# Another word, and one with more behind it, may have been meant for something else.
_ALLOWS: Final[Mapping[str, Verdict]] = {"y": "allow_once", "a": "allow_always"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody said to an ask."""

    verdict: Verdict
    reason: str = ""
    args: Mapping[str, JsonValue] | None = None


def ask_lines(told: Mapping[str, Any]) -> Iterator[str]:
    """An ask, line by line, and nothing of it left out: what is allowed was seen whole."""
    what = "let the result through of " if told["kind"] == "result_release" else ""
    yield f"? {what}{plain(told['tool'])}  ({plain(told['reason'])})"
    for name, value in told["args"].items():
        yield f"    {plain(name)} = {plain(json.dumps(value, ensure_ascii=False))}"


def answer_of(line: str) -> Answer | None:
    """The answer that a line is; None where it is none."""
    word, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    if word in _ALLOWS and not rest:
        return Answer(_ALLOWS[word])
    if word == "n":
        return Answer("deny", reason=rest)
    args = _object(rest) if word == "e" else None
    return None if args is None else Answer("allow_once", args=args)


def plain(text: str) -> str:
    """A text in one line that looks like what it is: nothing in it is unseen, or turns it round."""
    return "".join(char if char.isprintable() else _written(char) for char in text)


def _written(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _object(text: str) -> dict[str, JsonValue] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
