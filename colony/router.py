"""The router's desk: emissions and births come in, envelopes to cells go out."""

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from colony.keys import Keys
from colony.planning import plan
from colony.publication import Publication
from colony.routing import COLONY, route
from colony.streams import Delivery, Step

CAPACITY: Final = 512


class RouterDesk:
    """One stream in, the streams of all cells out."""

    def __init__(self, keys: Keys, publication: Publication) -> None:
        self.keys = keys
        self.publication = publication

    def sources(self) -> Sequence[str]:
        """The router's stream."""
        return (self.keys.router(),)

    def capacity(self, source: str) -> int:
        """How many deliveries may be in hand."""
        return CAPACITY

    def owner(self, source: str) -> str:
        """The router stands for colony itself."""
        return COLONY

    def about(self) -> Mapping[str, JsonValue]:
        """What this process tells of itself."""
        return {"version": self.publication.current.version}

    async def decide(self, delivery: Delivery) -> Step:
        """Where the envelope goes, as the newest topology says."""
        topology = self.publication.current
        made = plan(route(delivery.head, topology), delivery.body, self.keys, topology.settings)
        return Step(delivery, made.published, made.records, made.letters)
