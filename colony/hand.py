"""The hand: the deliveries that one process holds, each until it is let go."""

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from colony.envelope import new_id
from colony.streams import Delivery


@dataclass(slots=True, eq=False)
class Held:
    """A delivery in hand: the token of its attempt, and the task that handles it once one does.

    One token however often the server has to be asked: only handles count as attempts. It names the
    server the attempt began under. What is handled `apart` runs in another process, the only one it
    can crash.
    """

    attempt: str
    apart: bool = False
    task: asyncio.Task[None] | None = None


class Hand:
    """Deliveries that are handled, and others that are aside, to be handled one at a time."""

    def __init__(self) -> None:
        self._held: dict[Delivery, Held] = {}
        self._aside: deque[Delivery] = deque()
        self._load: Counter[str] = Counter()
        self._eased = asyncio.Event()
        self._asking = 0
        self._let_go_meanwhile: set[Delivery] = set()

    def __contains__(self, delivery: object) -> bool:
        return delivery in self._held

    def __iter__(self) -> Iterator[Delivery]:
        return iter(tuple(self._held))

    @property
    def kept(self) -> list[Delivery]:
        """Those that are handled, and the one that is handled alone next; others are anybody's.

        None is next while anything else runs that may take long.
        """
        handled = [delivery for delivery, held in self._held.items() if held.task is not None]
        alone = all(d.redelivered or self._held[d].apart for d in handled)
        return [*handled, self._aside[0]] if self._aside and alone else handled

    def handles(self, delivery: Delivery) -> bool:
        """Whether a delivery is in hand and not aside."""
        held = self._held.get(delivery)
        return held is not None and held.task is not None

    @property
    def any_aside(self) -> bool:
        """Whether a delivery waits to be handled alone."""
        return bool(self._aside)

    @property
    def handling(self) -> int:
        """How many deliveries are in hand and not aside."""
        return len(self._held) - len(self._aside)

    @property
    def at_risk(self) -> int:
        """How many deliveries are handled in this process, and would go down with it."""
        return sum(held.task is not None and not held.apart for held in self._held.values())

    def load(self, source: str) -> int:
        """How many deliveries of a source are in hand."""
        return self._load[source]

    def attempt(self, delivery: Delivery) -> str:
        """The token of the attempt at a delivery in hand."""
        return self._held[delivery].attempt

    def take(self, delivery: Delivery, *, apart: bool = False) -> None:
        """Hold a delivery, aside for now."""
        self._held[delivery] = Held(f"{delivery.server}/{new_id()}", apart)
        self._load[delivery.source] += 1
        self._aside.append(delivery)

    def next_aside(self) -> Delivery:
        """The delivery that has been aside the longest."""
        return self._aside[0]

    def start(self, delivery: Delivery, handling: Coroutine[None, None, None]) -> None:
        """Handle a delivery that was aside."""
        self._aside.remove(delivery)
        self._held[delivery].task = asyncio.create_task(handling)

    def let_go(self, delivery: Delivery) -> None:
        """Hold a delivery no longer; nothing is done to a task that handles it."""
        held = self._held.pop(delivery, None)
        if held is None:
            return
        if held.task is None:
            self._aside.remove(delivery)
        self._load[delivery.source] -= 1
        if self._asking:
            self._let_go_meanwhile.add(delivery)
        self._eased.set()

    def drop(self, delivery: Delivery) -> asyncio.Task[None] | None:
        """Let a delivery go and cancel its handling; returns the task that is cancelled."""
        held = self._held.get(delivery)
        self.let_go(delivery)
        if held is not None and held.task is not None:
            held.task.cancel()
            return held.task
        return None

    @contextmanager
    def let_go_meanwhile(self) -> Iterator[set[Delivery]]:
        """What is let go within the block; it must not be taken from an answer that was under way.

        It is settled, or will be found again.
        """
        self._asking += 1
        try:
            yield self._let_go_meanwhile
        finally:
            self._asking -= 1
            if not self._asking:
                self._let_go_meanwhile.clear()

    async def ease(self, seconds: float) -> None:
        """Wait until something was let go, or `wake` was called, for some seconds at most."""
        self._eased.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._eased.wait()

    def wake(self) -> None:
        """Let whoever waits for ease look again."""
        self._eased.set()
