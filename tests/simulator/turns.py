"""Turns: in which order the traces of each session have to go, as it was seen to come about.

What the server keeps of that is not looked at, but for traces that join a session on their way: it
decides which of their envelopes came first.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from colony.codec import decode_head
from colony.envelope import Head, session_of
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import Argument, Call
from tests.simulator.tree import BEFORE_THE_TURN, IN_TURN

# How many arguments of a commit come before its steps, and how many a dead letter has.
_SHARED = 2
_LETTER = 6


@dataclass
class Turns:
    """The traces of each session in the order of their places, and which of them have ended."""

    link: Link
    keys: Keys
    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    over: set[str] = field(default_factory=set)
    replayed: set[str] = field(default_factory=set)
    """Envelopes that were sent again to where they died: an edge they took is not taken again."""

    def place(self, trace_id: str, session: str) -> None:
        """A trace has the last place in a session; nothing where it has none, or one before."""
        if session and self.session(trace_id) is None:
            self.places[session].append(trace_id)

    def session(self, trace_id: str) -> str | None:
        """The session in which a trace has its place."""
        return next((name for name, traces in self.places.items() if trace_id in traces), None)

    def due(self, session: str) -> list[str]:
        """The traces of a session that have not ended, the one that has the turn first."""
        return [trace_id for trace_id in self.places[session] if trace_id not in self.over]

    async def joined(self, trace_id: str) -> None:
        """A trace may have been given a session on its way."""
        named = await self.link.command("HGET", self.keys.trace(trace_id), "session")
        self.place(trace_id, (named or b"").decode())

    def jumped(self, head: Head) -> list[str]:
        """The traces whose turn is before that of an envelope which took an ordered edge."""
        session = session_of(head.context)
        if head.sender not in BEFORE_THE_TURN or head.target not in IN_TURN:
            return []
        if head.id in self.replayed or self.session(head.trace_id) != session:
            return []
        due = self.due(session)
        return due[: due.index(head.trace_id)] if head.trace_id in due else []

    async def recall(self, gone: Collection[str]) -> None:
        """Go by what a server remembers of traces that it may have forgotten.

        Those whose record is `gone` for another reason have the place that they had.
        """
        for session, traces in self.places.items():
            kept = [id for id in traces if id in gone or await self._is_of(id, session)]
            self.places[session] = kept

    async def _is_of(self, trace_id: str, session: str) -> bool:
        state, named = await self.link.command(
            "HMGET", self.keys.trace(trace_id), "state", "session"
        )
        if state == b"ended":
            self.over.add(trace_id)
        else:
            self.over.discard(trace_id)
        return bool(state is not None and named == session.encode())


def published(call: Call) -> Iterator[list[Head]]:
    """What each step of a commit publishes."""
    left = iter(call.arguments[_SHARED:])
    for _ in range(int(call.arguments[_SHARED - 1])):
        _take(left, 3)
        heads = [_take(left, 2)[0] for _ in range(int(next(left)))]
        yield [decode_head(head) for head in heads if isinstance(head, bytes)]
        for width in (1, _LETTER, 1):
            _take(left, width * int(next(left)))
        # Of blobs there are only keys; then what changes in a run.
        _take(left, 2)


def _take(left: Iterator[Argument], count: int) -> Sequence[Argument]:
    return [next(left) for _ in range(count)]
