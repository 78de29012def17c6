"""Patterns: regular expressions with names, and which of them a text has."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache


def checked(patterns: Mapping[str, str]) -> Mapping[str, str]:
    """The same patterns; raises ValueError that names the first which is no regular expression."""
    for name, pattern in patterns.items():
        try:
            _compiled(pattern)
        except re.error as error:
            raise ValueError(f"{name} is no regular expression: {error}") from None
    return patterns


def found_in(texts: Iterable[str], patterns: Mapping[str, str]) -> list[str]:
    """The names of the patterns that are found in any of the texts."""
    given = [*texts]
    return [
        name
        for name, pattern in patterns.items()
        if any(_compiled(pattern).search(text) for text in given)
    ]


def texts_in(value: object) -> Iterator[str]:
    """Every text in a JSON value, the names in its objects among them."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
