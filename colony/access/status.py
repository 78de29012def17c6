"""Status: what an operator wants to know of a colony at one glance."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.access.registry import Registered, registry
from colony.access.rounds import Round, Rounds
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.repairs import Counts
from colony.slots import Holder, holders

ROLES: Final = ("router", "worker")


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many entries wait in a stream, those in hand included, and the age of the oldest."""

    waiting: int
    oldest_ms: int

    def to_json(self) -> dict[str, JsonValue]:
        """The backlog as a JSON object."""
        return {"waiting": self.waiting, "oldest_ms": self.oldest_ms}


@dataclass(frozen=True, slots=True)
class Status:
    """A colony at one moment. `open_traces` have not ended, those that are quiet included, and
    `oldest_trace_ms` is the age of the oldest of them.

    `repairs` counts what was found broken since the colony began, by kind.
    """

    name: str
    version: int
    digest: str
    processes: Sequence[Holder]
    cells: Sequence[Registered]
    backlogs: dict[str, Backlog]
    routing: Backlog
    open_traces: int
    oldest_trace_ms: int
    ended_traces: int
    rounds: Sequence[Round]
    dead_letters: int
    repairs: Mapping[str, int]

    @property
    def problems(self) -> list[str]:
        """What keeps messages from being handled, in a sentence each."""
        if not self.version:
            return [f"no tree was applied to the colony {self.name!r}"]
        found = [f"no {role} is running" for role in ROLES if not self._has(role)]
        return found + [
            f"nobody hosts {cell.spec.path}" + "".join(f": {why}" for why in cell.failures.values())
            for cell in self.cells
            if not cell.served and self._has("worker")
        ]

    def to_json(self) -> dict[str, JsonValue]:
        """The status as a JSON object."""
        return {
            "name": self.name,
            "topology": {"version": self.version, "digest": self.digest},
            "problems": [*self.problems],
            "processes": [_process(holder) for holder in self.processes],
            "cells": [
                {**cell.to_json(), **self.backlogs[cell.spec.path].to_json()} for cell in self.cells
            ],
            "routing": self.routing.to_json(),
            "traces": {
                "open": self.open_traces,
                "oldest_ms": self.oldest_trace_ms,
                "ended": self.ended_traces,
            },
            "rounds": [found.to_json() for found in self.rounds],
            "dead_letters": self.dead_letters,
            "repairs": {**self.repairs},
        }

    def _has(self, role: str) -> bool:
        return any(holder.role == role for holder in self.processes)


async def read_status(link: Link, keys: Keys, publication: Publication) -> Status:
    """What is the case now, by the server's clock."""
    await publication.refresh()
    topology = publication.current
    seconds, micros = await link.command("TIME")
    now = int(seconds) * 1000 + int(micros) // 1000
    stores = [path for path, cell in topology.cells.items() if cell.cell.type == "store"]
    streams = [keys.router(), *(keys.cell(path) for path in topology.cells)]
    found, backlogs, oldest, counts, rounds, repairs = await asyncio.gather(
        asyncio.gather(*(holders(link, keys, role) for role in ROLES)),
        asyncio.gather(*(_backlog(link, stream, now) for stream in streams)),
        link.command("ZRANGE", keys.open_traces(), 0, 0, "WITHSCORES"),
        asyncio.gather(
            link.command("ZCARD", keys.open_traces()),
            link.command("ZCARD", keys.ended_traces()),
            link.command("XLEN", keys.dead()),
        ),
        Rounds(link, keys).open(stores),
        Counts(link, keys).read(),
    )
    return Status(
        name=keys.name,
        version=topology.version,
        digest=topology.digest,
        processes=[holder for of_role in found for holder in of_role],
        cells=registry(topology, found[ROLES.index("worker")]),
        backlogs=dict(zip(topology.cells, backlogs[1:], strict=True)),
        routing=backlogs[0],
        open_traces=int(counts[0]),
        oldest_trace_ms=max(0, now - int(float(oldest[1]))) if oldest else 0,
        ended_traces=int(counts[1]),
        rounds=rounds,
        dead_letters=int(counts[2]),
        repairs=repairs,
    )


async def _backlog(link: Link, stream: str, now: int) -> Backlog:
    waiting, first = await asyncio.gather(
        link.command("XLEN", stream), link.command("XRANGE", stream, "-", "+", "COUNT", 1)
    )
    born = int(first[0][0].partition(b"-")[0]) if first else now
    return Backlog(int(waiting), max(0, now - born))


def _process(holder: Holder) -> dict[str, JsonValue]:
    return {"role": holder.role, "slot": holder.slot, **holder.about}
