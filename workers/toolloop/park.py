"""Park: a place where a chain ends on purpose, for trees that want to see it in their traces."""

from colony.envelope import Envelope
from workers.toolloop.params import HandlerParams


def park(envelope: Envelope, own: HandlerParams) -> None:
    """Nothing follows."""
