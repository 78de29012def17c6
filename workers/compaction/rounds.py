"""Rounds: the entries of a view by round, so that it is cut between rounds and nowhere else.

A round begins where the model speaks after somebody else has. So no cut parts a call from its
result, or from the calls beside it.
"""

from collections.abc import Iterator, Sequence

from colony.body import Entry

Entries = Sequence[Entry]


def in_rounds(entries: Entries) -> list[Entries]:
    """The rounds among `entries`; what holds no call is none."""
    return [found for found in _spoken(entries) if any(e.type == "tool_call" for e in found)]


def _spoken(entries: Entries) -> Iterator[Entries]:
    start = 0
    for place in range(1, len(entries)):
        if entries[place].origin == "assistant" and entries[place - 1].origin != "assistant":
            yield entries[start:place]
            start = place
    yield entries[start:]
