"""Park: a place where a chain ends on purpose, for trees that want to see it in their traces."""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.envelope import Envelope


def park(envelope: Envelope, params: Mapping[str, JsonValue]) -> None:
    """Nothing follows."""
