"""Turns: which question and which of its rounds an envelope belongs to.

Context carries both, because edges alone may change it.
"""

from colony.envelope import Envelope, iteration_of, turn_of


def question_id(envelope: Envelope) -> str:
    """The id of the question. Where no edge and no caller named one, it is that of the trace."""
    return turn_of(envelope.context) or envelope.trace_id


def iteration(envelope: Envelope) -> int:
    """The number of the round, from 0."""
    return iteration_of(envelope.context)


def route_of(envelope: Envelope) -> str | None:
    """The lane the envelope came on; a reply of the store has none."""
    found = envelope.hop.get("route")
    return found if isinstance(found, str) else None


def compacting(envelope: Envelope) -> bool:
    """Whether this chain folds the thread that it holds the permission to go on with."""
    return envelope.context.get("compacting") in ("1", 1)


def firing(envelope: Envelope) -> bool:
    """Whether this chain holds the permission to go on with its round."""
    return envelope.context.get("firing") in ("1", 1)
