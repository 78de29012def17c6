"""Run follower: what one follower of a session has been told, and what waits for it.

It is told no text twice and none out of its place, and nothing of a run behind its result.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pydantic import JsonValue

from colony.agent.cursors import cursor_of
from colony.agent.events import Event, place_of

# What waits for a follower before it counts as too slow, how long that may go on, and the most.
BUFFER: Final = 512
GRACE_S: Final = 5.0
MOST: Final = 8 * BUFFER

Phase = Literal["replay", "live", "mark", "gap"]
Place = tuple[int, int]

BEGINNING: Final[Place] = (0, 0)
TEXTS: Final = frozenset({"message.delta", "reasoning.delta"})


@dataclass(frozen=True, slots=True)
class Frame:
    """One thing that a follower is told.

    `mark` says that it has caught up, `gap` that something may be missing and that what follows
    begins anew; neither has an event. The cursor is that of a durable event.
    """

    phase: Phase
    event: Event | None = None
    cursor: str | None = None


@dataclass(slots=True, eq=False)
class RunFollower:
    """A follower of a session, or of one run; until it is `buffering` nothing waits for it."""

    session_id: str
    run_id: str | None = None
    place: Place = BEGINNING
    buffering: bool = False
    lagging: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: deque[Event | None] = field(default_factory=deque)
    _full_since: float | None = None
    _had: dict[tuple[str, int, str], int] = field(default_factory=dict)
    _available: set[tuple[str, int, str]] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)

    def push(self, event: Event | None) -> None:
        """Have an event wait for the follower, None for a gap; nothing for one that is too slow."""
        if not self.buffering or self.lagging:
            return
        now = asyncio.get_running_loop().time()
        if len(self.waiting) < BUFFER:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since > GRACE_S or len(self.waiting) >= MOST:
            self.lagging = True
        if not self.lagging:
            self.waiting.append(event)
        self.changed.set()

    def frame(self, event: Event, phase: Phase) -> Frame | None:
        """What the follower is told of an event; None where it knows it, or is not to."""
        if event.id is not None:
            place = place_of(event.id)
            if place <= self.place:
                return None
            self.place = place
        if event.run_id in self._ended or self.run_id not in (None, event.run_id):
            return None
        if event.kind == "result":
            self._ended.add(event.run_id)
        told = self._unheard(event)
        if told is None:
            return None
        cursor = None if event.id is None else cursor_of(self.session_id, event.id)
        return Frame(phase, told, cursor)

    def rest(self) -> None:
        """Nothing waits any more; what was told so far is not told again when it goes on."""
        self.waiting.clear()
        self.buffering = self.lagging = False
        self._full_since = None

    def begin_again(self) -> None:
        """Everything is to be told anew: the log is another one, or not all of it was told."""
        self.place = BEGINNING
        self.waiting.clear()
        for known in (self._had, self._available, self._ended):
            known.clear()

    def _unheard(self, event: Event) -> Event | None:
        """An event without the text that the follower has had; None for what it is not told."""
        if event.kind == "tool.result.available":
            key = (event.run_id, event.turn, str(event.payload.get("call_id")))
            if key in self._available:
                return None
            self._available.add(key)
        if event.kind not in TEXTS:
            return event
        text, offset = event.payload.get("text"), event.payload.get("offset")
        if not isinstance(text, str) or not isinstance(offset, int):
            return event
        key = (event.run_id, event.turn, event.kind)
        had = self._had.get(key, 0)
        end = offset + len(text)
        if event.id is None and (offset > had or end <= had):
            # It was heard, or what comes before it was missed: the log will bring all of it.
            return None
        self._had[key] = max(had, end)
        cut = max(0, had - offset)
        left: dict[str, JsonValue] = {"text": text[cut:], "offset": offset + cut}
        return replace(event, payload={**event.payload, **left})
