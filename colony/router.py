"""The router's desk: emissions and births come in, envelopes to cells go out."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from pydantic import JsonValue

from colony.errors import TopologyError
from colony.keys import Keys
from colony.planning import plan
from colony.publication import Publication
from colony.routing import COLONY, route
from colony.sessions import Sessions
from colony.streams import Delivery, Step

CAPACITY: Final = 512


class RouterDesk:
    """One stream in, the streams of all cells out."""

    def __init__(self, keys: Keys, publication: Publication, sessions: Sessions) -> None:
        self.keys = keys
        self.publication = publication
        self.sessions = sessions

    def sources(self) -> Sequence[str]:
        """The router's stream; none before a tree is known, where everything would die."""
        return () if self.publication.current.version == 0 else (self.keys.router(),)

    def capacity(self, source: str) -> int:
        """How many deliveries may be in hand."""
        return CAPACITY

    def is_apart(self, source: str) -> bool:
        """Routing is done here."""
        return False

    def max_deliveries(self) -> int:
        """How often an envelope may be handled before it is given up."""
        return self.publication.current.settings.max_deliveries

    def owner(self, source: str) -> str:
        """The router stands for colony itself."""
        return COLONY

    def about(self) -> Mapping[str, JsonValue]:
        """What this process tells of itself."""
        return {"version": self.publication.current.version}

    async def decide(self, delivery: Delivery) -> Step:
        """Where the envelope goes, as the newest topology says.

        Raises SettledElsewhere where it was parked until it is the turn of its trace.
        """
        routing = route(delivery.head, self.publication.current)
        # What leads nowhere may have been sent to a tree that was published a moment ago.
        if routing.deaths:
            with suppress(TopologyError):
                await self.publication.refresh()
            routing = route(delivery.head, self.publication.current)
        if routing.session:
            await self.sessions.take_turn(delivery, routing.session)
        made = plan(routing, delivery.body, self.keys, self.publication.current.settings)
        return Step(delivery, made.published, made.records, made.letters)
