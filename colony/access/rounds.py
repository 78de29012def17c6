"""Rounds: the tool rounds of a store that nobody has claimed yet, read from its threads.

A thread is a table with the columns turn_id, iter, role, turn and fired. A round is open while the
row of the assistant's calls has `fired` 0 and the trace that wrote it has not ended. Nothing here
changes a row.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgpack
from pydantic import JsonValue

from colony.access.thread_tables import ThreadTable, thread_tables
from colony.keys import Keys
from colony.link import Link
from colony.operations import MARK
from colony.schema import ANSWERS, EXPECTS, TRACE
from colony.store.selection import StoredRow

_THREAD = frozenset(("turn_id", "iter", "role", "turn", "fired"))
# Where a script keeps the millisecond in which a row was added.
_ADDED = ""


@dataclass(frozen=True, slots=True)
class Round:
    """A round that waits for the results `missing`.

    `key` holds what tells it from other rounds: turn_id, iter, and batch where threads have it.
    `expected` and `received` are ids of calls; `received` may hold ids that nobody expects. Beside
    calls, `question` may be missing: the row of the question. `age_ms` counts from the assistant's
    row, by the server's clock.
    """

    store: str
    table: str
    key: Mapping[str, JsonValue]
    expected: tuple[str, ...]
    received: tuple[str, ...]
    missing: tuple[str, ...]
    age_ms: int

    def to_json(self) -> dict[str, JsonValue]:
        """The round as a JSON object."""
        return {
            "store": self.store,
            "table": self.table,
            **self.key,
            "expected": [*self.expected],
            "received": [*self.received],
            "missing": [*self.missing],
            "age_ms": self.age_ms,
        }


class Rounds:
    """The open rounds of the stores at some paths."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def open(self, stores: Iterable[str], *, turn_id: str | None = None) -> list[Round]:
        """The open rounds of these stores, the oldest first; of one question where it is named."""
        seconds, micros = await self._link.command("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        threads = await thread_tables(self._link, self._keys, stores, columns=_THREAD)
        found = await asyncio.gather(
            *(_Thread(thread).rounds(turn_id, now_ms) for thread in threads)
        )
        return sorted((r for rounds in found for r in rounds), key=lambda r: -r.age_ms)


@dataclass(frozen=True, slots=True)
class _Thread:
    found: ThreadTable

    async def rounds(self, turn_id: str | None, now_ms: int) -> list[Round]:
        where: dict[str, JsonValue] = {"role": "assistant", "fired": 0}
        if turn_id is not None:
            where["turn_id"] = turn_id
        rows = await self._rows(where)
        living = await self._living({row.texts[TRACE] for row in rows})
        opened = [row for row in rows if row.texts[TRACE] in living]
        return [*await asyncio.gather(*(self._round(row, now_ms) for row in opened))]

    async def _living(self, traces: Iterable[bytes | None]) -> set[bytes | None]:
        """Those that have not ended; None, where a row names no trace, counts as one."""
        link, keys = self.found.link, self.found.keys
        named = [trace for trace in traces if trace is not None]
        states = await asyncio.gather(
            *(link.command("HGET", keys.trace(t.decode()), "state") for t in named)
        )
        found = zip(named, states, strict=True)
        return {None, *(trace for trace, state in found if state not in (None, b"ended"))}

    async def _round(self, assistant: StoredRow, now_ms: int) -> Round:
        table = self.found.table
        columns = [c for c in ("turn_id", "iter", "batch") if c in table.columns]
        key = assistant.values(table, columns)
        where: dict[str, JsonValue] = {
            c: {"is_null": True} if v is None else v for c, v in key.items()
        }
        rows = await self._rows(where)
        expected, received = _settled(rows)
        if not expected:
            by_role = [(table.value("role", row.text("role")), row) for row in rows]
            expected = _ids(self._turns(row for role, row in by_role if role == "assistant"))
            received = _ids(self._turns(row for role, row in by_role if role == "tool"))
        return Round(
            store=self.found.store,
            table=self.found.name,
            key=key,
            expected=_calls(expected),
            received=_calls(received),
            missing=tuple(c.removeprefix(MARK) for c in expected if c not in received),
            age_ms=max(0, now_ms - int(assistant.texts[_ADDED] or now_ms)),
        )

    def _turns(self, rows: Iterable[StoredRow]) -> Iterator[JsonValue]:
        for row in rows:
            turn = self.found.table.value("turn", row.text("turn"))
            yield _parsed(turn) if isinstance(turn, str) else turn

    async def _rows(self, where: Mapping[str, JsonValue]) -> list[StoredRow]:
        return await self.found.rows(where, (EXPECTS, ANSWERS, TRACE, _ADDED))


def _settled(rows: Iterable[StoredRow]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What `settle` was told of a round: the ids it expects and those that were answered."""
    expects: dict[str, None] = {}
    answers: dict[str, None] = {}
    for row in rows:
        expects |= dict.fromkeys(msgpack.unpackb(row.texts[EXPECTS] or b"\x90"))
        answers |= dict.fromkeys(msgpack.unpackb(row.texts[ANSWERS] or b"\x90"))
    return tuple(expects), tuple(answers)


def _calls(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(i for i in ids if not i.startswith(MARK))


def _ids(turns: Iterable[JsonValue]) -> tuple[str, ...]:
    """The ids of the calls and results in turns, each an entry or a list of entries."""
    ids: dict[str, None] = {}
    for turn in turns:
        for entry in turn if isinstance(turn, list) else [turn]:
            call = entry.get("id") if isinstance(entry, dict) else None
            if isinstance(call, str):
                ids[call] = None
    return tuple(ids)


def _parsed(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
