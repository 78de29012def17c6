"""Status: what an operator wants to know of a colony at one glance."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.access.registry import Registered, registry
from colony.access.rounds import Round, Rounds
from colony.counts import Counts
from colony.errors import ColonyError
from colony.keys import Keys
from colony.link import Link, server_problems
from colony.publication import Publication
from colony.sessions import HeldSession, Sessions
from colony.slots import Holder, holders

ROLES: Final = ("router", "worker")
# So many of the sessions that have traces that wait are named.
HELD: Final = 5
# No id of a trace looks like this.
NO_TRACE: Final = "-"


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
    """A colony at one moment. `oldest_trace_ms` is the age of the oldest trace that has not ended.

    `server` is what is wrong with the server. `backlog_max` is how much may wait before messages
    are refused. `waiting_traces` wait for an older trace of their session, `waiting_sessions` have
    such, and `held_sessions` are those with the most. `repairs` counts what was found broken since
    the colony began, by kind.
    """

    name: str
    version: int
    digest: str
    server: Sequence[ColonyError]
    processes: Sequence[Holder]
    cells: Sequence[Registered]
    backlogs: dict[str, Backlog]
    routing: Backlog
    backlog_max: int
    open_traces: int
    quiet_traces: int
    oldest_trace_ms: int
    ended_traces: int
    waiting_sessions: int
    waiting_traces: int
    held_sessions: Sequence[HeldSession]
    rounds: Sequence[Round]
    dead_letters: int
    repairs: Mapping[str, int]

    @property
    def problems(self) -> list[str]:
        """What keeps messages from being taken or handled, in a sentence each."""
        found = [f"{error.code}: {error}" for error in self.server]
        if not self.version:
            return [*found, f"no tree was applied to the colony {self.name!r}"]
        found += [f"no {role} is running" for role in ROLES if not self._has(role)]
        found += [
            f"the router in slot {holder.slot} serves nothing: it cannot read the tree"
            for holder in self.processes
            if holder.role == "router" and holder.about.get("version") == 0
        ]
        return found + [
            f"nobody hosts {cell.spec.path}" + "".join(f": {why}" for why in cell.failures.values())
            for cell in self.cells
            if not cell.served and self._has("worker")
        ]

    @property
    def waiting(self) -> int:
        """How many envelopes wait anywhere, those in hand included, and traces for their turn."""
        waiting = self.routing.waiting + self.waiting_traces
        return waiting + sum(backlog.waiting for backlog in self.backlogs.values())

    @property
    def refusing(self) -> bool:
        """Whether a message that came now would be refused, whatever it says."""
        return not self.version or bool(self.server) or self.waiting >= self.backlog_max

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
            "backlog": {
                "waiting": self.waiting,
                "max": self.backlog_max,
                "refusing": self.refusing,
            },
            "traces": {
                "open": self.open_traces,
                "quiet": self.quiet_traces,
                "oldest_ms": self.oldest_trace_ms,
                "ended": self.ended_traces,
            },
            "sessions": {
                "waiting": self.waiting_sessions,
                "traces": self.waiting_traces,
                "held": [session.to_json() for session in self.held_sessions],
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
    server, found, backlogs, oldest, counts, waiting, held, rounds, repairs = await asyncio.gather(
        server_problems(link, keys.trace(NO_TRACE)),
        asyncio.gather(*(holders(link, keys, role) for role in ROLES)),
        asyncio.gather(*(_backlog(link, stream, now) for stream in streams)),
        link.command("ZRANGE", keys.open_traces(), 0, 0, "WITHSCORES"),
        asyncio.gather(
            link.command("ZCARD", keys.open_traces()),
            link.command("ZCARD", keys.ended_traces()),
            link.command("XLEN", keys.dead()),
            link.command("XLEN", keys.quiet()),
        ),
        Sessions(link, keys).count(),
        Sessions(link, keys).held(limit=HELD),
        Rounds(link, keys).open(stores),
        Counts(link, keys).read(),
    )
    unended, ended, dead, quiet = map(int, counts)
    quiet = min(quiet, unended)
    return Status(
        name=keys.name,
        version=topology.version,
        digest=topology.digest,
        server=server,
        processes=[holder for of_role in found for holder in of_role],
        cells=registry(topology, found[ROLES.index("worker")]),
        backlogs=dict(zip(topology.cells, backlogs[1:], strict=True)),
        routing=backlogs[0],
        backlog_max=topology.settings.ingress_backlog_max,
        open_traces=unended - quiet,
        quiet_traces=quiet,
        oldest_trace_ms=max(0, now - int(float(oldest[1]))) if oldest else 0,
        ended_traces=ended,
        waiting_sessions=waiting[0],
        waiting_traces=waiting[1],
        held_sessions=held,
        rounds=rounds,
        dead_letters=dead,
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
