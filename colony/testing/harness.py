"""The stepped harness: a whole colony in one process, one commit at a time.

Router, workers and keeper run their real code against a real server. Nothing moves by itself: a
test looks at the deliveries that could be next and chooses one, so that it can play any order. Only
cells that make envelopes of their own do so when they like.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import JsonValue

from colony.access.admission import Admission
from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.dead_letters import Buried, DeadLetters
from colony.desk import settle
from colony.envelope import Headers
from colony.errors import CellError, SettledElsewhere
from colony.inbox import Inbox
from colony.keeping.keeper import Keeper
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.publication import Publication
from colony.records import HopRecord
from colony.router import RouterDesk
from colony.sessions import Sessions
from colony.streams import Delivery, Outcome, Step, Streams
from colony.topology.model import TopologySpec
from colony.traces import Trace, Traces
from colony.worker import WorkerDesk
from colony.workshop import Workshop

Choice = Callable[[Sequence[Delivery]], Delivery]


def first_come(pending: Sequence[Delivery]) -> Delivery:
    """The schedule in which everything is handled in the order it was published."""
    return pending[0]


def at_random(seed: int) -> Choice:
    """A schedule that is different for each seed and the same for one."""
    return random.Random(seed).choice


class Harness:
    """A colony that takes one step at a time. Use as an async context manager."""

    def __init__(
        self,
        url: str,
        spec: TopologySpec,
        *,
        name: str = "stepped",
        environment: Mapping[str, str] | None = None,
        root: Path | None = None,
    ) -> None:
        self.spec = spec
        self.keys = Keys(name)
        self.link = Link(url)
        self.blobs = Blobs(self.link, self.keys)
        self.streams = Streams(self.link, self.keys, self.blobs)
        self.publication = Publication(self.link, self.keys)
        self.traces = Traces(self.link, self.keys)
        self.admission = Admission(self.link, self.keys, self.publication)
        self.dead_letters = DeadLetters(self.link, self.keys)
        self.workshop = Workshop(self.link, self.keys, environment=environment or {}, root=root)
        self.steps = 0
        self._router = RouterDesk(self.keys, self.publication, Sessions(self.link, self.keys))
        self._worker = WorkerDesk(self.streams, self.keys, self.publication, self.workshop)
        self._keeper = Keeper(self.streams, self.publication)
        self._inbox = Inbox(self.link, "stepped-0")
        self._pending: list[Delivery] = []

    async def __aenter__(self) -> Self:
        """The tree is published and its cells run; raises CellError where one cannot."""
        self.publication.follow(self.workshop.follow)
        await self.publication.publish(self.spec)
        await self.publication.refresh()
        if self.workshop.failed:
            raise CellError(detail=str(self.workshop.failed))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Every cell is stopped and the connection closed; what is in Redis stays."""
        await self.workshop.close()
        await self.link.close()

    async def ask(self, target: str, text: str, **options: JsonValue) -> str:
        """Send a user's text to `target`; returns the trace id. Options as of `send`."""
        return await self.send(target, Body.of(Entry.say("user", text)), **options)  # type: ignore[arg-type]

    async def send(
        self,
        target: str,
        body: Body,
        *,
        ttl: int | None = None,
        context: Headers | None = None,
        hop: Headers | None = None,
    ) -> str:
        """Admit a message, as an interface does, and return its trace id."""
        birth = await self.admission.admit(target, body, ttl=ttl, context=context, hop=hop)
        return birth.trace_id

    async def pending(self) -> Sequence[Delivery]:
        """Every delivery that may be handled next, in the order they were published."""
        sources = [*self._router.sources(), *self._worker.sources()]
        found = await self._inbox.read(sources, count=1000, block_ms=None)
        for read in found:
            if isinstance(read, Delivery):
                self._pending.append(read)
            else:
                await self.streams.bury(read, target=read.source)
        return tuple(self._pending)

    def owner(self, delivery: Delivery) -> str:
        """The path of the cell a delivery is for; `/colony` where it is for the router."""
        desk = self._router if delivery.source == self.keys.router() else self._worker
        return desk.owner(delivery.source)

    async def decide(self, delivery: Delivery) -> Step:
        """What comes of a delivery, not committed: a handle whose process dies before the commit.

        A cell or envelope that fails is a step with a dead letter, as in a live worker.
        """
        desk = self._router if delivery.source == self.keys.router() else self._worker
        return await settle(desk, delivery)

    async def commit(self, *steps: Step) -> list[Outcome]:
        """Commit steps; the deliveries that this settles are not pending any more."""
        outcomes = await self.streams.commit(steps)
        for step, outcome in zip(steps, outcomes, strict=True):
            self.steps += 1
            if outcome.settled and step.delivery in self._pending:
                self._pending.remove(step.delivery)
        return outcomes

    async def step(self, delivery: Delivery) -> Outcome:
        """Handle a delivery and commit what comes of it; `parked` where it waits for its turn."""
        try:
            return (await self.commit(await self.decide(delivery)))[0]
        except SettledElsewhere:
            self.steps += 1
            self._pending.remove(delivery)
            return Outcome("parked")

    async def drop(self, delivery: Delivery) -> Outcome:
        """Settle a delivery as if it had been handled and nothing had come of it."""
        return (await self.commit(Step(delivery)))[0]

    async def run(self, choose: Choice = first_come, *, limit: int = 100_000) -> int:
        """Step until nothing is pending; returns how many steps were taken.

        Quiet traces are left alone: see `attend`.
        """
        for taken in range(limit):
            pending = await self.pending()
            if not pending:
                return taken
            await self.step(choose(pending))
        raise AssertionError(f"still moving after {limit} steps")

    async def attend(self) -> list[str]:
        """Let the keeper attend to every trace that was reported quiet; returns their ids."""
        attended: list[str] = []
        reply = await self.link.command(
            "XREADGROUP", "GROUP", GROUP, "stepped-0", "STREAMS", self.keys.quiet(), ">"
        )
        for entry, fields in reply[0][1] if reply else ():
            attended.append(fields[1].decode())
            await self._keeper.attend(attended[-1])
            await self.link.command("XACK", self.keys.quiet(), GROUP, entry)
            await self.link.command("XDEL", self.keys.quiet(), entry)
        return attended

    async def finish(self, choose: Choice = first_come) -> int:
        """Step and attend until no trace moves any more; returns how many steps were taken."""
        taken = await self.run(choose)
        while await self.attend():
            taken += await self.run(choose)
        return taken

    async def trace(self, trace_id: str) -> Trace:
        """The record of a trace."""
        return await self.traces.get(trace_id)

    async def hops(self, trace_id: str) -> list[HopRecord]:
        """The hop records of a trace."""
        return await self.traces.log(trace_id)

    async def outputs(self, trace_id: str) -> list[dict[str, JsonValue]]:
        """The messages kept as outputs of a trace: path, hop and body."""
        return await self.traces.outputs(trace_id)

    async def letters(self) -> list[Buried]:
        """Every dead letter."""
        return await self.dead_letters.list(limit=10_000)
