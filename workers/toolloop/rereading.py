"""Rereading: when a chain that holds the permission to go on asks for its thread once more.

It does where the thread was folded meanwhile, where a fold was lost, and where a model refused the
thread as too long.
"""

from colony.envelope import Envelope
from workers.toolloop.requests import SUMMARY_CALL_ID
from workers.toolloop.turns import compacting, route_of

AGAIN = "c_again"


def rereads(envelope: Envelope) -> bool:
    """Whether the thread is to be read again: on its own lane, and once the store has answered a
    summary, even if it refused it."""
    route = route_of(envelope)
    return route == AGAIN or (route is None and _answers_summary(envelope))


def _answers_summary(envelope: Envelope) -> bool:
    replies = envelope.body.each("tool_result")
    return compacting(envelope) and any(entry.id == SUMMARY_CALL_ID for entry in replies)
