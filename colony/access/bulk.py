"""Bulk: many dead letters dealt with at once, or only counted, so that one can look first."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from colony.dead_letters import Buried, DeadLetters, Which
from colony.errors import BlobUnavailable, ColonyError, DeadLetterNotFound, EnvelopeError
from colony.topology.model import QUIET

Replay = Callable[[str], Awaitable[str]]

# What keeps one letter from being dealt with, and no other.
REFUSALS = (DeadLetterNotFound, EnvelopeError, BlobUnavailable)


@dataclass(slots=True)
class Tally:
    """What was done with letters, or would be: `verb` says what, `traces` where one was sent.

    `last` is the last letter that was looked at, and `next` too where a limit left others behind.
    `passed_over` counts letters of the quiet lane's own envelopes, which stand in for a message:
    sent again beside it, they would have it answered twice.
    """

    verb: Literal["dropped", "replayed"]
    dry_run: bool
    ids: list[str] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    traces: dict[str, str] = field(default_factory=dict)
    refused: dict[str, ColonyError] = field(default_factory=dict)
    passed_over: int = 0
    next: str | None = None
    last: str | None = None

    def add(self, letter: Buried) -> None:
        """Count a letter."""
        self.ids.append(letter.id)
        self.counts[letter.code, letter.cell] += 1
        self.last = letter.id

    def refuse(self, letter: Buried, error: ColonyError) -> None:
        """Remember what keeps a letter from being dealt with."""
        self.refused[letter.id] = error
        self.last = letter.id

    def pass_over(self, letter: Buried) -> None:
        """Count a letter of the quiet lane that is left alone."""
        self.passed_over += 1
        self.last = letter.id

    def to_json(self) -> dict[str, JsonValue]:
        """The tally as a JSON object, the largest counts first."""
        return {
            "dry_run": self.dry_run,
            "count": len(self.ids),
            "by": [
                {"error_code": code, "cell": cell, "count": count}
                for (code, cell), count in self.counts.most_common()
            ],
            "refused": [
                {"id": letter_id, "code": error.code, "detail": str(error)}
                for letter_id, error in self.refused.items()
            ],
            "passed_over": self.passed_over,
            "next": self.next,
            self.verb: [] if self.dry_run else [self._done(letter_id) for letter_id in self.ids],
        }

    def _done(self, letter_id: str) -> JsonValue:
        trace_id = self.traces.get(letter_id)
        return letter_id if trace_id is None else {"id": letter_id, "trace_id": trace_id}


async def drop_all(
    letters: DeadLetters, which: Which, *, limit: int | None, dry_run: bool
) -> Tally:
    """Forget the oldest `limit` letters; with `dry_run`, count them."""
    tally = Tally("dropped", dry_run)
    async with aclosing(letters.pages(which)) as pages:
        async for page in pages:
            taken = page if limit is None else page[: limit - len(tally.ids)]
            for letter in taken:
                tally.add(letter)
            if taken and not dry_run:
                await letters.forget([letter.id for letter in taken])
            if len(taken) < len(page):
                tally.next = tally.last
                break
    return tally


async def replay_all(
    letters: DeadLetters, which: Which, *, replay: Replay | None, limit: int | None
) -> Tally:
    """Replay the oldest `limit` letters; without a way to `replay` one, count them.

    Letters that were replayed before are passed over; so are those of the quiet lane's own
    envelopes, unless it is what is asked for. Those that cannot be replayed are told and the others
    replayed. What dies again meanwhile is left for another time.
    """
    tally = Tally("replayed", dry_run=replay is None)
    async with aclosing(letters.pages(which)) as pages:
        async for page in pages:
            known = await letters.replays([letter.id for letter in page])
            for letter in page:
                if letter.id in known:
                    continue
                if letter.sender == QUIET != which.from_path_prefix:
                    tally.pass_over(letter)
                elif len(tally.ids) + len(tally.refused) == limit:
                    tally.next = tally.last
                    return tally
                else:
                    await _replay(letters, letter, tally, replay)
    return tally


async def _replay(
    letters: DeadLetters, letter: Buried, tally: Tally, replay: Replay | None
) -> None:
    try:
        if replay is None:
            await letters.envelope(letter)
        else:
            tally.traces[letter.id] = await replay(letter.id)
    except REFUSALS as error:
        tally.refuse(letter, error)
    else:
        tally.add(letter)
