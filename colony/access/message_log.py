"""The message log: what was routed in the traces that are kept, searched across all of them."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from colony.envelope import Head
from colony.keys import Keys
from colony.link import Link
from colony.paths import within
from colony.records import HopRecord
from colony.traces import Traces

SCAN_BUDGET: Final = 5_000
MAX_SCAN_BUDGET: Final = 50_000
TRACES_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which hops are asked for; a field that is None asks for nothing. Times in milliseconds.

    `path_prefix` holds for either end. `error` is a code, or `true` for any. `before` is the
    creation time and id of the last hop of the page before this one.
    """

    id: str | None = None
    trace_id: str | None = None
    parent_message_id: str | None = None
    correlation_id: str | None = None
    path_prefix: str | None = None
    to_path_prefix: str | None = None
    from_path_prefix: str | None = None
    body_kind: Literal["inline", "blob"] | None = None
    error: str | None = None
    since: int | None = None
    until: int | None = None
    before: tuple[int, str] | None = None

    def takes(self, record: HopRecord) -> bool:
        """Whether a hop is among those."""
        head = record.head
        exact = (
            (self.id, head.id),
            (self.trace_id, head.trace_id),
            (self.parent_message_id, head.parent_message_id),
            (self.correlation_id, head.correlation_id),
            (self.body_kind, record.body_kind),
        )
        return (
            all(wanted in (None, found) for wanted, found in exact)
            and _below(head.target, self.to_path_prefix)
            and _below(head.sender, self.from_path_prefix)
            and (_below(head.target, self.path_prefix) or _below(head.sender, self.path_prefix))
            and self._failed(head)
            and (self.since is None or head.created_at >= self.since)
            and (self.until is None or head.created_at <= self.until)
            and (self.before is None or _age(record) < self.before)
        )

    def _failed(self, head: Head) -> bool:
        code = head.hop.get("error_code")
        return (
            self.error is None or code == self.error or (self.error == "true" and code is not None)
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Hops that were found, and whether everything that is kept was looked at."""

    records: list[HopRecord]
    complete: bool


class MessageLog:
    """The hop records of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._traces = Traces(link, keys)

    async def newest(self, wanted: Wanted, *, limit: int, scan_budget: int) -> Page:
        """The newest hops that are wanted, the newest first.

        Traces are read from the newest on until `scan_budget` hops were looked at.
        """
        scanned, complete = await self._read(wanted, scan_budget)
        found = sorted(filter(wanted.takes, scanned), key=_age, reverse=True)
        return Page(found[:limit], complete)

    async def oldest(self, wanted: Wanted, *, limit: int) -> list[HopRecord]:
        """Hops that are wanted, in the order they were routed."""
        scanned, _ = await self._read(wanted, SCAN_BUDGET)
        found = sorted(filter(wanted.takes, scanned), key=lambda record: record.at)
        return found[:limit]

    async def _read(self, wanted: Wanted, budget: int) -> tuple[list[HopRecord], bool]:
        if wanted.trace_id is not None:
            return await self._traces.log(wanted.trace_id), True
        return await self._scan(budget)

    async def _scan(self, budget: int) -> tuple[list[HopRecord], bool]:
        ids = [
            trace_id
            for which in ("open", "ended")
            for trace_id in await self._traces.ids(which, limit=budget)
        ]
        scanned: list[HopRecord] = []
        for batch in _batches(ids):
            if len(scanned) >= budget:
                return scanned, False
            for log in await asyncio.gather(*(self._traces.log(trace_id) for trace_id in batch)):
                scanned += log
        return scanned, len(ids) < budget


def _batches(ids: list[str]) -> Iterable[list[str]]:
    return (ids[at : at + TRACES_AT_ONCE] for at in range(0, len(ids), TRACES_AT_ONCE))


def _below(path: str | None, prefix: str | None) -> bool:
    return prefix is None or (path is not None and within(path, prefix))


def _age(record: HopRecord) -> tuple[int, str]:
    return record.head.created_at, record.head.id
