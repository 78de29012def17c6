"""A recording source: what a cell makes of its own, kept in memory where a test can read it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from structlog.testing import LogCapture

from colony.envelope import Emission, derived_id
from colony.errors import GuardReused
from colony.host import Mark
from colony.log import Logger
from colony.topology.model import CellSpec


@dataclass(frozen=True, slots=True)
class Born:
    """A birth, the mark it reached and its session; `name` is the guard where it was admitted."""

    emission: Emission
    name: str
    mark: int | None = None
    session: str = ""


@dataclass
class RecordingSource:
    """A `colony.host.Source` without Redis, whose clock stands where the test puts it.

    `births`, `marks`, `leaves` and `logged` hold what the cell did; what two sources share is what
    two processes share.
    """

    spec: CellSpec
    directory: Path | None = None
    now: int = 0
    leading: bool = True
    births: list[Born] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        capture = LogCapture()
        self.logged: Sequence[Mapping[str, object]] = capture.entries
        self.log: Logger = structlog.wrap_logger(
            logging.Logger("cell"),
            processors=[capture],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    async def clock(self) -> int:
        """The time the test set."""
        return self.now

    async def lead(self, lease_ms: int) -> bool:
        """What the test said."""
        return self.leading

    async def mark(self, name: str = "") -> Mark:
        """How far the source has come."""
        return self.marks.get(name, Mark())

    async def raise_mark(self, mark: int, *, name: str = "", after: int | None = None) -> bool:
        """The mark is reached, unless it was before."""
        known = await self.mark(name)
        if known.reached >= mark or after not in (None, known.reached):
            return False
        self.marks[name] = Mark(mark, known.births)
        return True

    async def birth(
        self,
        emission: Emission,
        *,
        mark: int,
        name: str = "",
        after: int | None = None,
        session: str = "",
    ) -> bool:
        """The birth is in `births`, unless its mark was reached before."""
        if not await self.raise_mark(mark, name=name, after=after):
            return False
        self.marks[name] = Mark(mark, self.marks[name].births + 1)
        self.births.append(Born(emission, name, mark, session))
        return True

    async def forget_mark(self, name: str) -> None:
        """The mark is gone."""
        self.marks.pop(name, None)

    async def admit(self, emission: Emission, *, guard: str, session: str = "") -> str:
        """The birth is in `births` once."""
        known = [born for born in self.births if born.mark is None and born.name == guard]
        trace_id = derived_id("guard", guard)
        if known and known[0].emission != emission:
            raise GuardReused(trace_id=trace_id)
        if not known:
            self.births.append(Born(emission, guard, session=session))
        return trace_id

    async def state(self) -> dict[str, str]:
        """The leaves of the state."""
        return dict(self.leaves)

    async def put_state(self, leaves: Mapping[str, str]) -> None:
        """The leaves are there."""
        self.leaves.update(leaves)

    async def remove_state(self, paths: Sequence[str]) -> None:
        """The leaves are gone."""
        for path in paths:
            self.leaves.pop(path, None)
