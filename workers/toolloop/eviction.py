"""Eviction: which of several things a model is shown again leave its view, so that the rest fits.

They leave whole and oldest first, and more of them than needed at once. If one left each time that
one came, every request would begin differently, and no provider could reuse what it has read of the
one before. What is left out follows from the things alone, so it is the same whenever and wherever
they are looked at, and what has left does not come back.
"""

import json
from collections.abc import Callable, Sequence

from colony.body import Entry


def first_shown(
    weights: Sequence[int],
    *,
    most: int,
    most_bytes: int,
    note: Callable[[int], int] = lambda left: 0,
) -> int:
    """How many of the oldest are left out, of things with these weights; the newest never is.

    As each thing came, the oldest before it left if there were more than `most`, or more than
    `most_bytes` of them: as many as it takes for the rest to be at most three quarters of both.
    `note` is the weight of what stands for so many that have left; it counts as well.
    """
    first, total = 0, 0
    for newest, weight in enumerate(weights):
        total += weight
        if newest - first < most and total + note(first) <= most_bytes:
            continue
        while first < newest and (
            newest - first >= _slackened(most) or total + note(first) > _slackened(most_bytes)
        ):
            total -= weights[first]
            first += 1
    return first


def first_of_newest(
    weights: Sequence[int],
    *,
    before: int,
    most: int,
    most_bytes: int,
    note: Callable[[int], int] = lambda left: 0,
) -> int:
    """How many of these are left out, where so many `before` them are not known; the newest never
    is.

    Nothing leaves while all of it fits, and then no more than it takes for three quarters of both
    caps to be left. Between the two that place is taken which the most powers of two divide: it is
    the same one for several that come.
    """
    if not before and len(weights) <= most and sum(weights) <= most_bytes:
        return 0

    def fewest(most: int, most_bytes: int) -> int:
        """How many have to leave for the rest to keep to both caps, if it can."""
        first = newest = len(weights) - 1
        total = weights[newest]
        while first and newest - first + 1 < most:
            total += weights[first - 1]
            if total + note(before + first - 1) > most_bytes:
                break
            first -= 1
        return first

    least, slack = fewest(most, most_bytes), fewest(_slackened(most), _slackened(most_bytes))
    # Whatever the slack, the last but one stays where it fits.
    return _roundest(before + least, before + max(least, min(slack, len(weights) - 2))) - before


def weight_of(entries: Sequence[Entry]) -> int:
    """How many bytes a model is sent of these entries."""
    return sum(map(_weight, entries))


def size_of(text: str | None) -> int:
    """How many bytes a text has."""
    return len((text or "").encode(errors="replace"))


def _roundest(low: int, high: int) -> int:
    """Of the numbers from `low` to `high` the one that the most powers of two divide."""
    if not low:
        return 0
    # It is what `high` has in common with all numbers down to `low`, and zeros.
    zeros = ((low - 1) ^ high).bit_length() - 1
    return high >> zeros << zeros


def _slackened(cap: int) -> int:
    return max(1, cap * 3 // 4)


def _weight(entry: Entry) -> int:
    # What a provider wants back is paid for again as well.
    return size_of(entry.text) + (size_of(json.dumps(entry.vendor)) if entry.vendor else 0)
