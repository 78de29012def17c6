"""Failovers under traffic, and what came of every message that a client was told of.

What Redis itself lost, because it had not reached the server that was promoted, is counted apart.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from colony.records import HopRecord
from colony.testing.replicated_server import Node, ReplicatedServer
from colony.traces import Traces
from tests.faults.colony_at_work import ColonyAtWork
from tests.faults.tree import Sums, judge

How = Literal["kill", "command", "freeze"]

HOWS: Final[tuple[How, ...]] = ("kill", "command", "freeze")
# Two deliveries of one envelope may be handled side by side; a later handle has no such excuse.
SIDE_BY_SIDE_MS: Final = 1_000
ENOUGH: Final = 6


@dataclass
class Account:
    """What became of what was accepted. `sums` are those that the promoted server knows of.

    `undone` counts what was handled and is not known of any more.
    """

    sums: Sums
    lost_by_redis: int = 0
    undone: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether everything ended exactly once, but for what Redis lost whole."""
        return self.sums.clean and not self.problems

    def told(self) -> str:
        """All there is to say about what is not clean."""
        return "\n".join([str(self), *self.problems, *self.sums.notes])

    def __str__(self) -> str:
        sums = self.sums
        return (
            f"accepted {sums.accepted + self.lost_by_redis}, ended {sums.ended}, "
            f"lost by Redis {self.lost_by_redis}, lost {sums.lost}, doubled {sums.doubled}, "
            f"stalled {sums.stalled}, handled again {sums.repeats}, undone {self.undone}"
        )


async def fail_over(how: How, servers: ReplicatedServer, colony: ColonyAtWork) -> Node:
    """Another server leads, and the colony works with it; returns who led before."""
    old, new = servers.primary, servers.replica
    match how:
        case "kill":
            # What happens from here on is lost.
            servers.part()
            await colony.answers(ENOUGH)
            old.kill()
        case "command":
            await asyncio.to_thread(servers.fail_over)
        case "freeze":
            old.pause()
    await asyncio.to_thread(servers.await_leader, new)
    await colony.answers(ENOUGH)
    return old


async def come_back(how: How, servers: ReplicatedServer, old: Node) -> None:
    """Who led before is back, as what it was, and follows in the end."""
    if how == "kill":
        await asyncio.to_thread(old.start)
    elif how == "freeze":
        old.resume()
    servers.join()
    await asyncio.to_thread(servers.await_whole)


async def account(colony: ColonyAtWork) -> Account:
    """What became of everything, once nothing moves any more or patience ends."""
    await colony.stop_sending()
    await colony.within(colony.at_rest)
    keys = await _all_keys(colony)
    asked, gone = {}, set[str]()
    for trace_id, kind in colony.asked.items():
        if colony.keys.trace(trace_id) in keys:
            asked[trace_id] = kind
        else:
            gone.add(trace_id)
    logs = {id_: await Traces(colony.link, colony.keys).log(id_) for id_ in asked}
    known, undone = _told_apart(await colony.handled(), logs)
    found = Account(await judge(colony.link, colony.keys, asked, known), len(gone), undone)
    found.problems += [f"half a trace: {key}" for key in keys if any(id_ in key for id_ in gone)]
    found.problems += await _never_asked_for(colony, keys)
    found.problems += _repeated(known, logs)
    if not found.clean:
        found.problems += [f"{p.role} {p.pid}\n{p.log}" for p in colony.fleet.processes]
    return found


def _told_apart(
    handled: list[bytes], logs: Mapping[str, list[HopRecord]]
) -> tuple[list[bytes], int]:
    """What was handled of messages the server knows of, and how much of others.

    What is done once more after a loss need not go the same way: whichever result comes last
    completes a round.
    """
    sent = {record.head.id for log in logs.values() for record in log}
    known = [line for line in handled if json.loads(line)["message"] in sent]
    return known, len(handled) - len(known)


async def _all_keys(colony: ColonyAtWork) -> set[str]:
    found: set[str] = set()
    cursor = b"0"
    while True:
        cursor, page = await colony.link.command("SCAN", cursor, "COUNT", 1000)
        found |= {key.decode() for key in page}
        if cursor == b"0":
            return found


async def _never_asked_for(colony: ColonyAtWork, keys: set[str]) -> list[str]:
    """Traces of which no client was told are whole as well."""
    problems = []
    prefix = colony.keys.trace("")
    for trace_id in {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}:
        if ":" in trace_id:
            continue
        trace = await Traces(colony.link, colony.keys).get(trace_id)
        if not trace.ended or trace.live:
            problems.append(f"{trace_id} is {trace.state} with {trace.live} live")
    return problems


def _repeated(handled: list[bytes], logs: Mapping[str, list[HopRecord]]) -> list[str]:
    """Handles that began when what the first of them led to was on the server already."""
    handles: dict[tuple[str, str], list[float]] = {}
    for line in handled:
        told = json.loads(line)
        handles.setdefault((told["trace"], told["message"]), []).append(told["at"] * 1000)
    problems = []
    for (trace_id, message), times in handles.items():
        recorded = [r.at for r in logs[trace_id] if r.head.parent_message_id == message]
        late = [at for at in times if recorded and at > min(recorded) + SIDE_BY_SIDE_MS]
        if late:
            problems.append(f"{trace_id}: {message} was handled again after {late}")
    return problems
