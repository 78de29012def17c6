"""Actors: routers and workers that hold deliveries, keepers, clients with their operators.

What they do is colony's own code. They differ from its processes in that nothing happens by itself:
a world tells each of them when to read, claim, commit, give up or die.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from redis.exceptions import ResponseError

from colony.access.admission import Admission
from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.consumer import Consumer
from colony.dead_letters import DeadLetters
from colony.envelope import Headers
from colony.errors import (
    BlobUnavailable,
    CellError,
    DeadLetterNotFound,
    GuardReused,
    ServerChanged,
    ServerUnavailable,
    SettledElsewhere,
    TraceNotFound,
)
from colony.inbox import Inbox, Read
from colony.keeping.keeper import Keeper
from colony.keeping.unhosted import Unhosted
from colony.keys import GROUP, Keys
from colony.pace import Pace
from colony.publication import Publication
from colony.router import RouterDesk
from colony.sessions import Sessions
from colony.slots import Slots
from colony.streams import Delivery, Step, Streams
from colony.topology.model import Topology
from colony.traces import Traces
from colony.worker import WorkerDesk
from colony.workshop import Hosted, Workshop
from tests.simulator.conductor import Conductor, SteppedLink
from tests.simulator.tree import INLINE_MAX_BYTES, LATE

MOST_IN_HAND = 6


@dataclass(frozen=True)
class Means:
    """What an actor is given: the world's keys, tree, jobs and chance."""

    keys: Keys
    topology: Topology
    conductor: Conductor
    random: Random

    def streams(self, link: SteppedLink) -> Streams:
        """The streams, through an actor's own link."""
        blobs = Blobs(link, self.keys, inline_max_bytes=INLINE_MAX_BYTES)
        return Streams(link, self.keys, blobs)

    def publication(self, link: SteppedLink) -> Publication:
        """The tree, as an actor knows it that has followed it."""
        publication = Publication(link, self.keys)
        publication.current = self.topology
        return publication


class Process:
    """A router or worker: the deliveries in its hand, each decided by a job of its own."""

    def __init__(
        self, name: str, link: SteppedLink, means: Means, cells: Mapping[str, Hosted] | None
    ) -> None:
        self.name = name
        self.link = link
        self.behind = False
        self.decided: dict[Delivery, Step] = {}
        self.committing: set[Delivery] = set()
        self._means = means
        self._streams = means.streams(link)
        self.desk = self._make_desk(cells)
        self._inbox = Inbox(link, name)
        self._consumer = self._make_consumer()

    @property
    def room(self) -> int:
        """How much more it may have in hand."""
        return MOST_IN_HAND - sum(1 for _ in self._consumer._hand)

    @property
    def in_hand(self) -> tuple[Delivery, ...]:
        """Every delivery it holds."""
        return tuple(self._consumer._hand)

    @property
    def ready(self) -> list[Delivery]:
        """What is decided and not being committed."""
        return [delivery for delivery in self.decided if delivery not in self.committing]

    def sources(self) -> list[str]:
        """The streams it reads."""
        return [*self.desk.sources()]

    async def read(self, sources: Sequence[str], count: int) -> list[Delivery]:
        """Take new entries, at most `count` of each source."""
        return self._take(await self._inbox.read(sources, count=count, block_ms=None))

    async def reclaim(self, source: str, count: int) -> list[Delivery]:
        """Take entries that anybody holds, however short a time."""
        return self._take(await self._inbox.reclaim(source, idle_ms=0, count=count))

    async def take_up(self) -> list[Delivery]:
        """Take what this name holds, in its own view or not."""
        self.behind = False
        found = [read for source in self.sources() for read in await self._inbox.history(source)]
        return self._take(found)

    def die(self) -> None:
        """Forget everything. Its name lives on."""
        self.decided.clear()
        self.committing.clear()
        self._consumer = self._make_consumer()
        self._inbox = Inbox(self.link, self.name)
        self.behind = True

    async def decide(self, delivery: Delivery) -> None:
        """A job: what comes of a delivery."""
        while delivery in self._consumer._hand:
            try:
                self.decided[delivery] = await self._consumer._decide(delivery)
                return
            except ServerUnavailable:
                if self._means.random.random() < 0.2:
                    self.let_go(delivery)
            except ServerChanged:
                self.let_go(delivery)
                self.behind = True
            except (CellError, ResponseError, SettledElsewhere):
                self.let_go(delivery)

    async def commit(self, deliveries: Sequence[Delivery]) -> None:
        """A job: publish what came of some deliveries, once the server has answered."""
        self.committing.update(deliveries)
        steps = [self.decided[delivery] for delivery in deliveries]
        while True:
            try:
                await self._streams.commit(steps)
                break
            except ServerUnavailable:
                if self._means.random.random() < 0.2:
                    break
            except ServerChanged:
                self.behind = True
                break
        for delivery in deliveries:
            self.let_go(delivery)

    async def hand_back(self, delivery: Delivery) -> None:
        """A job: let others have what is in hand here."""
        attempt = self._consumer._hand.attempt(delivery)
        self.let_go(delivery)
        try:
            await self._streams.hand_back(delivery, consumer=self.name, attempt=attempt)
        except (ServerUnavailable, ServerChanged):
            self.behind = True

    def let_go(self, delivery: Delivery) -> None:
        """Hold a delivery no longer."""
        self.decided.pop(delivery, None)
        self.committing.discard(delivery)
        self._consumer._hand.let_go(delivery)

    def _take(self, found: Sequence[Read]) -> list[Delivery]:
        taken = []
        for read in found:
            assert isinstance(read, Delivery), read
            if read not in self._consumer._hand:
                self._consumer._hand.take(read)
                taken.append(read)
        return taken

    def _make_desk(self, cells: Mapping[str, Hosted] | None) -> RouterDesk | WorkerDesk:
        keys, publication = self._means.keys, self._means.publication(self.link)
        if cells is None:
            return RouterDesk(keys, publication, Sessions(self.link, keys))
        workshop = Workshop(self.link, keys, patterns=(), environment={})
        workshop.cells = dict(cells)
        desk = WorkerDesk(self._streams, keys, publication, workshop)
        if self.link.tampering.never_asks:
            assert callable(desk._ask)
            desk._ask = _never_ask  # type: ignore[method-assign]
        return desk

    def _make_consumer(self) -> Consumer:
        slots = Slots(self.link, self._means.keys, "simulated")
        return Consumer(self.desk, Inbox(self.link, self.name), self._streams, slots, pace=Pace())


class Warden:
    """A keeper, with what it has read of the quiet stream in its hand."""

    def __init__(self, name: str, link: SteppedLink, means: Means) -> None:
        self.name = name
        self.link = link
        self._keys = means.keys
        streams, publication = means.streams(link), means.publication(link)
        self.keeper = Keeper(streams, publication)
        self.unhosted = Unhosted(streams, publication)
        self.held_up: list[str] = []

    async def read(self, count: int) -> list[tuple[bytes, list[bytes]]]:
        """Traces that were reported quiet."""
        quiet = self._keys.quiet()
        reply = await self.link.command(
            "XREADGROUP", "GROUP", GROUP, self.name, "COUNT", count, "STREAMS", quiet, ">"
        )
        return [*reply[0][1]] if reply else []

    async def reclaim(self, count: int) -> list[tuple[bytes, list[bytes]]]:
        """Reports that somebody has in hand, or had."""
        quiet = self._keys.quiet()
        reply = await self.link.command(
            "XAUTOCLAIM", quiet, GROUP, self.name, 0, "0-0", "COUNT", count
        )
        return [(entry, fields) for entry, fields in reply[1] if fields]

    async def attend(self, entry: bytes, fields: list[bytes]) -> None:
        """A job: do what a report asks for, and settle it."""
        try:
            await self.keeper._attend_all([(entry, fields)])
        except (ServerUnavailable, ServerChanged):
            return

    async def look(self) -> None:
        """A job: pass on each turn that is nobody's, one session after the other."""
        if self.link.tampering.never_looks:
            return
        try:
            server = await self.link.open()
            names = await self.link.command("ZRANGE", self._keys.waiting(), 0, -1, server=server)
            for name in names:
                if await self.keeper.sessions._repair(name.decode(), server):
                    self.held_up.append(name.decode())
        except (ServerUnavailable, ServerChanged):
            return

    async def bury(self, path: str) -> None:
        """A job: give up the first entry of a cell, as if nobody had hosted it for long."""
        page = await self.link.command("XRANGE", self._keys.cell(path), "-", "+", "COUNT", 1)
        try:
            await self.unhosted._bury(path, page)
        except (ServerUnavailable, ServerChanged):
            return


@dataclass(eq=False)
class Message:
    """What a client sends: under a guard, or under an id of its own making."""

    number: int
    target: str
    text: str
    turn: str
    guard: str | None
    trace_id: str
    session: str = ""
    told: bool = False

    @property
    def body(self) -> Body:
        """What is said."""
        return Body.of(Entry.say("user", self.text))

    @property
    def context(self) -> Headers:
        """What it is sent with."""
        named = "wish" if self.target == LATE else "session_id"
        return {"turn_id": self.turn, named: self.session}


class Client:
    """Whoever sends messages, cancels them and replays what died; asks again when not answered."""

    def __init__(self, link: SteppedLink, means: Means) -> None:
        self.link = link
        self.problems: list[tuple[str, str | None]] = []
        self.answers: dict[str, set[str]] = {}
        self._means = means
        self._traces = Traces(link, means.keys)
        self._admission = Admission(link, means.keys, means.publication(link))
        self._letters = DeadLetters(link, means.keys)

    async def send(self, message: Message) -> None:
        """A job: have a message admitted, once however often it is sent."""
        while True:
            try:
                await self._send(message, message.text)
                message.told = True
                return
            except (ServerUnavailable, BlobUnavailable):
                if self._means.random.random() < 0.1:
                    return

    async def misuse(self, message: Message) -> None:
        """A job: send another message under the guard of one that was admitted."""
        try:
            await self._send(message, f"not {message.text}")
        except (ServerUnavailable, BlobUnavailable, GuardReused):
            return
        self.problems.append(("a guard served two requests", message.trace_id))

    async def end(self, trace_id: str, cause: str) -> None:
        """A job: end a trace from outside."""
        try:
            if cause == "cancelled":
                await self._traces.end(trace_id, "cancelled", "requested")
            else:
                await self._traces.end(trace_id, "failed", "trace_timeout")
        except (ServerUnavailable, TraceNotFound):
            return

    async def replay(self, letter_id: str) -> None:
        """A job: have a dead letter sent again, once however often it is asked for."""
        while True:
            try:
                trace_id = await self._letters.replay(letter_id, ttl=1000)
                self.answers.setdefault(letter_id, set()).add(trace_id)
                return
            except ServerUnavailable:
                if self._means.random.random() < 0.2:
                    return
            except DeadLetterNotFound:
                return

    async def _send(self, message: Message, text: str) -> None:
        body = Body.of(Entry.say("user", text))
        if message.guard is not None:
            await self._admission.admit(
                message.target,
                body,
                context=message.context,
                guard=message.guard,
            )
            return
        birth = await self._traces.birth(
            message.target,
            body,
            ttl=1000,
            context=message.context,
            trace_id=message.trace_id,
            inline_max_bytes=INLINE_MAX_BYTES,
        )
        assert birth.trace_id == message.trace_id


async def _never_ask(delivery: Delivery) -> None:
    """Handle it, whatever became of its trace."""
