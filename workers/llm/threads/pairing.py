"""Pairing: a thread as every provider takes it, each call answered exactly once and at once.

Threads come out of stores, out of trees of all kinds and out of views that were cut. A thread that
needs no repair is left as it is, and the same thread is always repaired in the same way.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from colony.body import Entry
from colony.envelope import digest
from workers.llm.threads.functions import read_function

Repair = Literal[
    "missing_result",
    "moved_result",
    "duplicate_result",
    "orphan_result",
    "duplicate_call",
    "renamed_call",
    "replaced_arguments",
    "replaced_name",
]
Repairs = Mapping[str, int]

MISSING = "no result was recorded for this call"


def repaired(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], Repairs]:
    """The thread in which each call has its result directly after the calls of its turn, in their
    order, and what was done for that.

    Of several results of one call the first counts, wherever it stands; a call without one gets an
    error result, and a result without a call is left out. An id that is used again by a later turn
    is that of another call. What is no function is left for others to refuse.
    """
    counts: Counter[Repair] = Counter()
    outline = _Outline(counts)
    for entry in entries:
        outline.add(entry)
    outline.settle()
    repairs: Repairs = {kind: counts[kind] for kind in sorted(counts) if counts[kind]}
    return (tuple(outline.entries()), repairs) if repairs else (tuple(entries), {})


@dataclass(frozen=True, slots=True)
class _Found:
    """A result: which of them it is, and how much stands before it."""

    result: Entry
    place: int
    turns_before: int
    items_before: int


@dataclass(slots=True)
class _Slot:
    """A call that was made, under the id that it came with, and its result."""

    came_as: str
    call: Entry
    found: _Found | None = None

    @property
    def answer(self) -> Entry:
        """The result under the id of the call."""
        call_id = self.call.id or ""
        if self.found is None:
            return Entry.result(call_id, MISSING, is_error=True)
        result = self.found.result
        return result if result.id == call_id else result.model_copy(update={"id": call_id})


@dataclass(slots=True)
class _Turn:
    """Calls that stand together, and the prose beside them; `items_before` counts it as well."""

    items_before: int
    said: list[Entry | _Slot] = field(default_factory=list)

    @property
    def slots(self) -> list[_Slot]:
        """The calls, in their order."""
        return [said for said in self.said if isinstance(said, _Slot)]

    def called(self, call_id: str) -> list[_Slot]:
        """The calls that came under this id."""
        return [slot for slot in self.slots if slot.came_as == call_id]


class _Outline:
    """A thread without its results, which are put where they belong once all of it is known."""

    def __init__(self, counts: Counter[Repair]) -> None:
        self._counts = counts
        self._items: list[Entry | _Turn] = []
        self._turns: list[_Turn] = []
        self._found: list[_Found] = []
        self._open: _Turn | None = None

    def add(self, entry: Entry) -> None:
        """Take the next entry of the thread."""
        if entry.type == "tool_call":
            self._add_call(entry)
        elif self._open and entry.type == "text" and entry.origin == "assistant":
            self._open.said.append(entry)
        else:
            self._open = None
            if entry.type == "tool_result":
                self._found.append(
                    _Found(entry, len(self._found), len(self._turns), len(self._items))
                )
            else:
                self._items.append(entry)

    def settle(self) -> None:
        """Every result is with its call, or counted as left out."""
        early = [found for found in self._found if not self._given_back(found)]
        for found in early:
            self._give_ahead(found)
        for turn in self._turns:
            self._count_moves(turn)

    def entries(self) -> Iterator[Entry]:
        """The thread as it is sent."""
        for item in self._items:
            if isinstance(item, Entry):
                yield item
                continue
            for said in item.said:
                yield said if isinstance(said, Entry) else said.call
            for slot in item.slots:
                yield slot.answer

    def _add_call(self, entry: Entry) -> None:
        if self._open is None:
            self._open = _Turn(items_before=len(self._items) + 1)
            self._items.append(self._open)
            self._turns.append(self._open)
        came_as, call = entry.id or "", self._sendable(entry)
        same = self._open.called(came_as)
        if came_as and any(slot.call.text == call.text for slot in same):
            self._counts["duplicate_call"] += 1
            return
        if same or not came_as:
            # Made of what the call says, so that it stays the same when earlier turns leave.
            call_id = f"call_{digest([came_as, call.text, len(self._open.slots)])}"
            call = call.model_copy(update={"id": call_id})
            self._counts["renamed_call"] += 1
        self._open.said.append(_Slot(came_as, call))

    def _sendable(self, entry: Entry) -> Entry:
        function = read_function(entry)
        if function is None or not (function.lost_name or function.lost_arguments):
            return entry
        self._counts["replaced_name"] += function.lost_name
        self._counts["replaced_arguments"] += function.lost_arguments
        return entry.model_copy(update={"text": function.text})

    def _given_back(self, found: _Found) -> bool:
        """Whether a turn before the result has calls of its id; the last such turn takes it."""
        for turn in reversed(self._turns[: found.turns_before]):
            called = turn.called(found.result.id or "")
            if called:
                if not _given(found, called):
                    self._counts["duplicate_result"] += 1
                return True
        return False

    def _give_ahead(self, found: _Found) -> None:
        """The next call of its id takes the result, if it has none of its own."""
        # What stands at the head of a thread is the rest of a turn that was cut away.
        before = self._items[: found.items_before]
        cut = all(isinstance(item, Entry) and item.origin == "system" for item in before)
        called = [s for turn in self._turns for s in turn.called(found.result.id or "")]
        if cut or not _given(found, called):
            self._counts["orphan_result"] += 1

    def _count_moves(self, turn: _Turn) -> None:
        """Count what did not stand behind its turn in the order of the calls, or not at all."""
        last = -1
        for found in (slot.found for slot in turn.slots):
            if found is None:
                self._counts["missing_result"] += 1
                continue
            moved = found.items_before != turn.items_before or found.place < last
            self._counts["moved_result"] += moved
            last = max(last, found.place)


def _given(found: _Found, called: Iterable[_Slot]) -> bool:
    """Whether one of the calls had no result yet, and has this one now."""
    waiting = next((slot for slot in called if slot.found is None), None)
    if waiting is not None:
        waiting.found = found
    return waiting is not None
