"""Rows: which fault is put at which point of which role, and what has to pass by there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tests.faults.tree import Kind

Role = Literal["router", "worker", "store", "keeper", "api"]
Action = Literal["crash", "stop", "term", "drop"]

ACTIONS: Final[tuple[Action, ...]] = ("crash", "stop", "term", "drop")


@dataclass(frozen=True)
class Place:
    """A point of a role, and how a trial gets there: by the `kinds` of questions that are asked.

    The fault comes at one of the first `passages`. `after` says what has to happen to the role
    before: one that had something in hand was killed, or it is told to end.
    """

    role: Role
    point: str
    kinds: tuple[Kind, ...]
    passages: int = 1
    after: Literal["nothing", "a crash", "a term"] = "nothing"


@dataclass(frozen=True)
class Row:
    """One fault: what is done at a place."""

    place: Place
    action: Action

    @property
    def name(self) -> str:
        """How the row is called."""
        return f"{self.place.role}/{self.place.point}/{self.action}"


def rows() -> Iterator[Row]:
    """Every fault there is for a process."""
    for place in (*_consumers(), *_router(), *_worker(), *_store(), *_keeper(), *_api()):
        for action in ACTIONS:
            # Who is on the way out already is not told to end again.
            if not (action == "term" and place.after == "a term"):
                yield Row(place, action)


def _around(role: Role, script: str, kinds: Sequence[Kind], passages: int = 1) -> Iterator[Place]:
    for when in ("before", "after"):
        yield Place(role, f"{when}_{script}", tuple(kinds), passages)


def _consumers() -> Iterator[Place]:
    """What a router and a worker have in common: their loop."""
    loops: tuple[tuple[Role, tuple[Kind, ...]], ...] = (
        ("router", ("rounds", "lull", "talk")),
        ("worker", ("rounds", "large", "lull")),
        ("store", ("rounds", "ledger")),
    )
    for role, kinds in loops:
        yield Place(role, "after_read", kinds, 5)
        yield Place(role, "after_handle", kinds, 20)
        yield from _around(role, "commit", kinds, 10)
        yield from _around(role, "lease_slot", kinds, 3)
        for when in ("before", "after"):
            yield Place(role, f"{when}_reclaim", kinds, 4, "a crash")
            yield Place(role, f"{when}_attempt", kinds, 1, "a crash")
            yield Place(role, f"{when}_release_slot", kinds, 1, "a term")


def _router() -> Iterator[Place]:
    yield from _around("router", "park", ("talk", "talk", "turns"), 8)


def _worker() -> Iterator[Place]:
    yield from _around("worker", "renew", ("slow",), 3)
    yield from _around("worker", "record", ("rounds",), 3)
    yield from _around("worker", "record_request", ("rounds",), 3)
    yield from _around("worker", "update_state", ("rounds",), 3)
    yield from _around("worker", "keep_blob", ("large",), 5)
    for when in ("before", "after"):
        yield Place("worker", f"{when}_hand_back", ("slow",), 2, "a term")


def _store() -> Iterator[Place]:
    yield from _around("store", "store_make", ("rounds", "ledger"))
    # The first ones find no table yet, and do nothing.
    yield from _around("store", "settle", ("rounds",), 20)
    written = ("store_insert", "store_update", "store_upsert", "store_delete")
    for script in (*written, "store_select", "store_newest"):
        yield from _around("store", script, ("ledger", "ledger"), 8)


def _keeper() -> Iterator[Place]:
    yield Place("keeper", "after_quiet_read", ("rounds", "lull"), 2)
    yield from _around("keeper", "revive", ("lull",), 2)
    yield from _around("keeper", "end_quiet", ("lull", "turns", "talk", "talk"), 6)
    yield from _around("keeper", "retire", ("rounds", "lull"), 2)
    yield from _around("keeper", "dismiss", ("rounds", "lull"), 2)
    yield from _around("keeper", "end_trace", ("overdue", "talk"))


def _api() -> Iterator[Place]:
    yield from _around("api", "birth", ("rounds", "lull"), 4)
