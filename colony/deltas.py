"""Deltas: a text told by what of it lies in another one.

Made for requests to a model, of which each begins and ends like the one before, and of which now
and then a stretch in the middle has moved.
"""

from collections.abc import Iterable, Sequence
from typing import Final

# A stretch of the other text, by its place and length, or bytes that are not taken from there.
Part = Sequence[int] | bytes

_STEP: Final = 1 << 14
_WINDOW: Final = 64
# How far into a middle it is looked for a stretch that moved, how many bytes are gone through for
# it, and what share of a text is worth it.
_FAR: Final = 4096
_SEARCHED: Final = 4 * 1024 * 1024
_WORTH: Final = 4


def delta(before: bytes, text: bytes) -> list[Part]:
    """The parts of a text, in order, of which `before` holds what it can."""
    first = _alike(before, text)
    last = _alike_behind(before[first:], text[first:])
    middle = text[first : len(text) - last]
    parts: list[Part] = [(0, first), *_moved(before, middle, len(text)), (len(before) - last, last)]
    return [part for part in parts if part and (isinstance(part, bytes) or part[1])]


def applied(before: bytes, parts: Iterable[Part]) -> bytes:
    """The text that has these parts."""
    return b"".join(
        part if isinstance(part, bytes) else before[part[0] : part[0] + part[1]] for part in parts
    )


def _moved(before: bytes, middle: bytes, size: int) -> list[Part]:
    """The parts of a middle: where older messages left a thread, the younger ones moved up."""
    if len(middle) * _WORTH < size:
        return [middle]
    far = min(_FAR, _WINDOW * (1 + _SEARCHED // (len(before) + 1)), len(middle) - _WINDOW)
    for start in range(0, far, _WINDOW):
        at = before.find(middle[start : start + _WINDOW])
        if at >= 0:
            length = _alike(before[at:], middle[start:])
            return [middle[:start], (at, length), middle[start + length :]]
    return [middle]


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike."""
    at, step, most = 0, _STEP, min(len(one), len(other))
    while step:
        if at + step <= most and one[at : at + step] == other[at : at + step]:
            at += step
        else:
            step //= 2
    return at


def _alike_behind(one: bytes, other: bytes) -> int:
    """How many bytes two texts end with alike."""
    at, step, most = 0, _STEP, min(len(one), len(other))
    while step:
        if at + step <= most and one.endswith(other[len(other) - at - step :]):
            at += step
        else:
            step //= 2
    return at
