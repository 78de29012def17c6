"""Streams: how envelopes travel.

An entry is delivered at least once and committed at most once; `commit` is the only way to settle
one whose head can be read. A step is all that comes of one delivery.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from colony.agent.changes import RunChanges
from colony.blobs import Blobs
from colony.codec import blob_reference, encode_kept_head, pack
from colony.dead_letters import facts_of
from colony.envelope import DeadLetter, Head
from colony.errors import EnvelopeError
from colony.keys import GROUP, LONG_IDLE_MS, Keys
from colony.link import Link
from colony.lua.registry import Argument, bind
from colony.runs.steps import RunDelivery, commit_apart, run_keys, run_part

MAX_BATCH: Final = 64
MAX_BATCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Delivery:
    """An envelope in a consumer's hands: where it was read, from which server, and what it holds.

    `times` counts how often it was delivered. Two deliveries of one entry are equal.
    """

    source: str
    entry: str
    server: str
    head: Head = field(compare=False)
    body: bytes = field(compare=False)
    times: int = field(default=1, compare=False)

    @property
    def redelivered(self) -> bool:
        """Whether somebody held it before and may have crashed over it."""
        return self.times > 1


@dataclass(frozen=True, slots=True)
class Broken:
    """A delivery whose head cannot be read."""

    source: str
    entry: str
    server: str
    head: bytes
    body: bytes
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An envelope to be published: the stream it goes to, its head, its body as msgpack."""

    stream: str
    head: bytes
    body: bytes


@dataclass(slots=True)
class Step:
    """What came of one delivery, to be committed as one."""

    delivery: Delivery
    published: list[Outgoing] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    # Keys of what the handle has put on the shelf.
    shelved: list[str] = field(default_factory=list)
    # What the handle does to the run that its envelope belongs to.
    run: RunChanges | None = None

    @property
    def apart(self) -> bool:
        """Whether it asks, or ends its run. What died of something is settled like any other."""
        return self.run is not None and self.run.apart and not self.letters

    def size(self) -> int:
        """About how many bytes a commit of this step sends."""
        published = sum(len(out.head) + len(out.body) for out in self.published)
        letters = sum(_weight(letter.body) for letter in self.letters)
        changes = self.run.size() if self.run else 0
        kept = sum(map(len, self.records)) + sum(map(len, self.kept))
        return published + letters + kept + changes


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a commit of one step ended: `committed`, `stale`, `fenced` or `blob_lost`; of a step of a
    run also `done`, of one that asks `asked`, of one that ends its run `ended` or `steered`."""

    token: str
    live: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the delivery is off its stream, by this commit or an earlier one."""
        return self.token != "blob_lost"


class Streams:
    """The streams of one partition, written through one link."""

    def __init__(self, link: Link, keys: Keys, blobs: Blobs) -> None:
        self.link = link
        self.keys = keys
        self.blobs = blobs

    async def commit(self, steps: Sequence[Step]) -> list[Outcome]:
        """Settle each step's delivery and publish what came of it, each all or nothing, once.

        All steps must come from one server; raises ServerChanged and writes nothing if that is not
        the one this link talks to. Bodies above the inline limit are put under blob keys first.
        """
        together = [step for step in steps if not step.apart]
        committed = iter(await self._commit_together(together))
        return [await self._commit_apart(step) if step.apart else next(committed) for step in steps]

    async def _commit_apart(self, step: Step) -> Outcome:
        delivery, changes = step.delivery, step.run
        assert changes is not None, "only a step of a run is settled apart"
        settled = RunDelivery(
            delivery.source,
            delivery.entry,
            delivery.server,
            delivery.head,
            delivery.body,
            [(out.head, out.body) for out in step.published],
        )
        return _outcome(await commit_apart(self.link, self.keys, settled, changes))

    async def _commit_together(self, steps: Sequence[Step]) -> list[Outcome]:
        if not steps:
            return []
        keys: list[Argument] = []
        parts: list[Argument] = []
        for step in steps:
            await self._lay_out(step, keys, parts)
        call = bind(
            "commit",
            quiet=self.keys.quiet(),
            dead=self.keys.dead(),
            repairs=self.keys.repairs(),
            keys=keys,
            group=GROUP,
            steps=len(steps),
            parts=parts,
        )
        answers = await self.link.run(call, server=steps[0].delivery.server)
        return [_outcome(answer) for answer in answers]

    async def bury(self, broken: Broken, *, target: str) -> None:
        """Settle a delivery whose head cannot be read; its bytes become a dead letter."""
        letter = DeadLetter(
            code=broken.code,
            detail=broken.detail,
            sender="",
            original_target=target,
            resolved_target=target,
            head=None,
            body=broken.body,
        )
        call = bind(
            "bury",
            source=broken.source,
            dead=self.keys.dead(),
            repairs=self.keys.repairs(),
            group=GROUP,
            entry=broken.entry,
            code=broken.code,
            target=target,
            facts=facts_of(letter),
            head=broken.head,
            body=broken.body,
        )
        await self.link.run(call, server=broken.server)

    async def hand_back(self, delivery: Delivery, *, consumer: str, attempt: str) -> bool:
        """Let anybody take up at once what is in hand here; whether it still was.

        `attempt` is the token of the handle that was counted and broken off, or empty: what is
        handed back counts neither as a delivery nor as an attempt.
        """
        call = bind(
            "hand_back",
            source=delivery.source,
            attempts=self.keys.attempts(delivery.head.trace_id),
            repairs=self.keys.repairs(),
            group=GROUP,
            consumer=consumer,
            entry=delivery.entry,
            idle_ms=LONG_IDLE_MS,
            envelope=delivery.head.id,
            token=attempt,
        )
        answer = await self.link.run(call, server=delivery.server)
        return bool(answer[0] == b"returned")

    async def _lay_out(self, step: Step, keys: list[Argument], parts: list[Argument]) -> None:
        trace = step.delivery.head.trace_id
        published = [await self.blobs.offload(out.body, trace) for out in step.published]
        # What a letter keeps is its own copy: a blob may expire before it does.
        letters = [(letter, await self.blobs.inline(letter.body)) for letter in step.letters]
        keys += [
            step.delivery.source,
            self.keys.trace(trace),
            self.keys.log(trace),
            self.keys.outputs(trace),
            self.keys.belongings(trace),
            *(out.stream for out in step.published),
        ]
        parts += [step.delivery.entry, trace, encode_kept_head(step.delivery.head)]
        parts.append(len(step.published))
        for out, (body, _) in zip(step.published, published, strict=True):
            parts += [out.head, body]
        parts += [len(step.records), *step.records, len(step.letters)]
        for letter, body in letters:
            parts += [*_letter_fields(letter), body]
        blobs = [blob for _, blob in published if blob is not None]
        parts += [len(step.kept), *step.kept, len(blobs) + len(step.shelved)]
        keys += [*(self.keys.blob(blob) for blob in blobs), *step.shelved]
        parts.append(run_part(self.keys, step.run))
        if step.run and step.run.any:
            keys += run_keys(self.keys, trace, step.run)


def next_batch(waiting: deque[Step]) -> list[Step]:
    """Take from the front what one commit may hold: one server, 64 steps, 1 MiB."""
    batch = [waiting.popleft()]
    size = batch[0].size()
    while waiting and len(batch) < MAX_BATCH:
        size += waiting[0].size()
        if size > MAX_BATCH_BYTES or waiting[0].delivery.server != batch[0].delivery.server:
            break
        batch.append(waiting.popleft())
    return batch


def _weight(body: bytes) -> int:
    """What the body of a letter adds: a blob is sent whole, and is taken for as large as a batch
    may be, so that no two come together."""
    try:
        return len(body) if blob_reference(body) is None else MAX_BATCH_BYTES
    except EnvelopeError:
        return len(body)


def _letter_fields(letter: DeadLetter) -> list[Argument]:
    head = letter.head
    return [
        letter.code,
        letter.resolved_target or "",
        head.id if head else "",
        facts_of(letter),
        _kept(head) if head else pack(None),
    ]


def _kept(head: Head) -> bytes:
    try:
        return encode_kept_head(head)
    except EnvelopeError:
        # Headers that cannot be written down may be why it died: ids and paths can be kept.
        return encode_kept_head(head.model_copy(update={"context": {}, "hop": {}}))


def _outcome(answer: Any) -> Outcome:
    token = answer[0].decode()
    return Outcome(token, answer[1] if len(answer) > 1 else None)
