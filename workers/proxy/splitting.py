"""Splitting: a long text as several messages, each as long as a platform takes.

Length is counted in UTF-16 code units. Bot libraries and measurements disagree on whether Telegram
counts those or code points; a text that is short enough in the one measure is so in both.
"""

from collections.abc import Iterator
from typing import Final

TEXT_LIMIT: Final = 4096
# The best place to cut at first; one that leaves next to nothing in the message is no good place.
BOUNDARIES: Final = ("\n\n", "\n", " ")
LEAST_PART: Final = 4


def units(text: str) -> int:
    """The length of `text` in UTF-16 code units."""
    return len(text) + sum(character > "\uffff" for character in text)


def split(text: str, limit: int = TEXT_LIMIT) -> Iterator[str]:
    """The parts of `text` in order, none longer than `limit`, none blank.

    Each ends with a paragraph, else with a line, else with a word, else wherever it has to. White
    space where it is cut is left out, all else is in exactly one part.
    """
    left = text.strip()
    while left:
        window = _beginning(left, limit)
        cut = len(window) if window == left else _boundary(window, left)
        yield left[:cut].rstrip()
        left = left[cut:].lstrip()


def _beginning(text: str, limit: int) -> str:
    """The longest beginning of `text` that is not longer than `limit`."""
    window = text[:limit]
    if window.isascii():
        return window
    size = 0
    for position, character in enumerate(window):
        size += 2 if character > "\uffff" else 1
        if size > limit:
            return window[:position]
    return window


def _boundary(window: str, text: str) -> int:
    # What follows the window counts: it may end exactly where a word does.
    for boundary in BOUNDARIES:
        cut = text.rfind(boundary, 0, len(window) + len(boundary))
        if cut >= len(window) // LEAST_PART and cut > 0:
            return cut
    return len(window)
