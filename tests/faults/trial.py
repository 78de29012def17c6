"""A trial: one fault in one process of a colony that is at work, and what came of every message.

Each trial is a colony of its own, so that many run side by side on one server.
"""

import asyncio
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import Final

import httpx

from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.claims import comes_true
from colony.testing.fleet import Fleet, Process
from colony.testing.nursery import Nursery
from colony.topology.model import TopologySpec
from tests.faults.rows import Row
from tests.faults.tree import CELLS, QUESTIONS, ROOT, STORE, Kind, Sums, ask, judge, spec

CLAIM_IDLE_S: Final = 0.4
PATIENCE_S: Final = 90.0
POLL_S: Final = 0.02
AT_ONCE: Final = 2
BATCHES: Final = 12
HTTP_PATIENCE_S: Final = 0.6
TRIES: Final = 3

_numbers = itertools.count()


@dataclass(frozen=True)
class Ground:
    """What trials share: a server, a link to it, and where processes come from."""

    url: str
    link: Link
    nursery: Nursery
    tree: TopologySpec = field(default_factory=spec)


@dataclass
class Result:
    """What came of one trial. `missed` says that the fault never happened, which proves nothing.

    `recovery_s` is the time from the fault until every message sent before had ended.
    """

    sums: Sums
    recovery_s: float = 0.0
    missed: bool = False

    @property
    def clean(self) -> bool:
        """Whether the fault happened, and did no harm."""
        return self.sums.clean and not self.missed


async def run(ground: Ground, row: Row, seed: int) -> Result:
    """One trial of a row; the same seed makes the same choices, but not the same timing.

    Where the fault never happened it is tried again, since that proves nothing.
    """
    for attempt in range(TRIES):
        result = await _run_once(ground, row, random.Random(f"{row.name} {seed} {attempt}"))
        if not result.missed:
            break
    return result


async def _run_once(ground: Ground, row: Row, rng: random.Random) -> Result:
    name = f"trial-{next(_numbers)}"
    keys, journal = Keys(name), f"journal-{name}"
    drain_s = "0.05" if row.place.point.endswith("hand_back") else "5"
    environment = {
        "COLONY_CLAIM_IDLE_S": str(CLAIM_IDLE_S),
        "COLONY_DRAIN_S": drain_s,
        "FAULTS_JOURNAL": journal,
    }
    with Fleet(ground.nursery, ground.url, name, environment=environment) as fleet:
        await Publication(ground.link, keys).publish(ground.tree)
        trial = _Trial(ground, row, rng, fleet, keys)
        try:
            try:
                result = await trial.play()
            except AssertionError as error:
                # A process that does not do what it has to is a finding like any other.
                result = Result(Sums(stalled=1, notes=[str(error)]))
            result.sums.add(
                await judge(
                    ground.link,
                    keys,
                    trial.asked,
                    await ground.link.command("LRANGE", journal, 0, -1),
                )
            )
            if not result.clean:
                result.sums.notes.append(trial.logs())
            return result
        finally:
            for task in trial.beside:
                task.cancel()
            fleet.close()
            await sweep(ground.link, keys, journal)


class _Trial:
    def __init__(
        self, ground: Ground, row: Row, rng: random.Random, fleet: Fleet, keys: Keys
    ) -> None:
        self.link = ground.link
        self.row = row
        self.rng = rng
        self.fleet = fleet
        self.keys = keys
        self.asked: dict[str, Kind] = {}
        self.beside: list[asyncio.Task[object]] = []
        self._client: _Client | None = None

    async def play(self) -> Result:
        """Send, let the fault happen, let others take over, and wait until all is at rest."""
        place = self.row.place
        self._support()
        if place.after == "a crash":
            await self._crash_first()
        victim = self._start(self._armed())
        early = place.after == "nothing" and self.rng.random() < 0.5
        if place.role == "api":
            self._client = _Client([victim, self._start()])
        elif early:
            self._start()
        noticing = asyncio.create_task(self._notice(victim))
        self.beside.append(noticing)
        if not await self._reached(victim):
            return Result(Sums(notes=[f"the fault never happened:\n{victim.log}"]), missed=True)
        hit, sent = await noticing, len(self.asked)
        if not early and place.role != "api":
            self._start()
        recovered = asyncio.Event()
        woken = asyncio.create_task(self._wake(victim, recovered))
        self.beside.append(woken)
        ended = await comes_true(lambda: self._ended(sent), patience_s=PATIENCE_S)
        recovery_s = time.monotonic() - hit
        recovered.set()
        await woken
        sums = Sums()
        if ended:
            await self._send(place.kinds[:1], count=1)
        # Not only ended: nothing is left anywhere that waits for somebody.
        if not (ended and await comes_true(self._at_rest, patience_s=PATIENCE_S)):
            sums.stalled += 1
            sums.notes.append(f"not at rest: {await self._left()}")
        await self._said_goodbye(victim, sums)
        return Result(sums, recovery_s)

    def logs(self) -> str:
        """What the processes logged."""
        return "\n".join(f"--- {p.role} {p.pid}: {p.status}\n{p.log}" for p in self.fleet.processes)

    # Processes

    def _support(self) -> None:
        """Everything but the role that is put under the fault."""
        role = self.row.place.role
        if role in ("worker", "store", "api"):
            self.fleet.router()
        if role in ("router", "keeper", "api"):
            self._worker(*STORE, *CELLS)
        elif role == "worker":
            self._worker(*STORE)
        else:
            self._worker(*CELLS)

    def _start(self, armed: str = "") -> Process:
        """A process of the role that is put under the fault."""
        role = self.row.place.role
        if role in ("router", "keeper"):
            return self.fleet.router(armed=armed)
        if role == "api":
            return self.fleet.api(armed=armed)
        return self._worker(*(STORE if role == "store" else CELLS), armed=armed)

    def _worker(self, *cells: str, armed: str = "") -> Process:
        patterns = [part for cell in cells for part in ("--cells", cell)]
        return self.fleet.worker("--root", str(ROOT), *patterns, armed=armed)

    def _armed(self) -> str:
        place = self.row.place
        return f"{place.point}={self.row.action}@{self.rng.randint(1, place.passages)}"

    async def _crash_first(self) -> None:
        """Somebody dies with something in hand, which is to be taken over."""
        died = self._start("before_commit=crash")
        await self._send(self.row.place.kinds)
        await died.ended(timeout_s=PATIENCE_S)

    async def _notice(self, victim: Process) -> float:
        """When the fault happened: a client may still be waiting then."""
        while not victim.events("fault"):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return time.monotonic()

    async def _reached(self, victim: Process) -> bool:
        """Send questions until the fault happens, and return whether it did."""
        told = False
        for _ in range(BATCHES):
            await self._send(self.row.place.kinds)
            deadline = time.monotonic() + PATIENCE_S
            while not victim.events("fault"):
                if self.row.place.after == "a term" and not told:
                    told = await self._tell_to_end(victim)
                if not victim.running or time.monotonic() > deadline:
                    return bool(victim.events("fault"))
                # What takes its time to pass by here may do so after everything has ended.
                if self.row.place.point in _SOON and await self._at_rest():
                    break
                await asyncio.sleep(POLL_S)
            else:
                return True
        return False

    async def _tell_to_end(self, victim: Process) -> bool:
        """SIGTERM, as soon as it serves and somebody is at work; whether it was sent."""
        at_work = bool(await self.link.command("EXISTS", f"journal-{self.keys.name}"))
        due = at_work and bool(victim.events("serving"))
        if due:
            victim.terminate()
        return due

    async def _wake(self, victim: Process, recovered: asyncio.Event) -> None:
        """A frozen process goes on: while others take over what it held, or when they have."""
        if self.row.action != "stop":
            return
        await victim.stands_still()
        if self.rng.random() < 0.5:
            await asyncio.sleep(CLAIM_IDLE_S * self.rng.uniform(1.2, 3))
        else:
            await recovered.wait()
        victim.resume()

    async def _said_goodbye(self, victim: Process, sums: Sums) -> None:
        """The process is in the state that its fault leaves it in."""
        if self.row.action == "crash":
            expected: int | None = -9
        elif self.row.action == "term" or self.row.place.after == "a term":
            expected = 0
        else:
            expected = None
        status = victim.status if expected is None else await victim.ended(timeout_s=PATIENCE_S)
        if status != expected:
            sums.stalled += 1
            sums.notes.append(f"{victim.pid} ended with {status} instead of {expected}")

    # Messages

    async def _send(self, kinds: tuple[Kind, ...], *, count: int = AT_ONCE) -> None:
        chosen = [kind for kind in kinds for _ in range(count)]
        if self._client is not None:
            sending = (self._client.ask(kind) for kind in chosen)
        else:
            sending = (ask(self.link, self.keys, kind) for kind in chosen)
        for kind, trace_id in zip(chosen, await asyncio.gather(*sending), strict=True):
            self.asked[trace_id] = kind

    async def _ended(self, count: int) -> bool:
        return int(await self.link.command("ZCARD", self.keys.ended_traces())) >= count

    async def _at_rest(self) -> bool:
        left = await self._left()
        return not any(left.values()) and await self._ended(len(self.asked))

    async def _left(self) -> dict[str, int]:
        """What still waits, by stream; and the traces that are open or were never asked for."""
        streams = [self.keys.router(), self.keys.quiet(), *map(self.keys.cell, (*CELLS, *STORE))]
        lengths = await asyncio.gather(*(self.link.command("XLEN", s) for s in streams))
        opened = int(await self.link.command("ZCARD", self.keys.open_traces()))
        ended = int(await self.link.command("ZCARD", self.keys.ended_traces()))
        unasked = max(0, opened + ended - len(self.asked))
        return {
            **dict(zip(streams, map(int, lengths), strict=True)),
            "parked": int(await self.link.command("HLEN", self.keys.parked())),
            "open": opened,
            "unasked": unasked,
        }


# Points that questions pass before all is at rest, if they pass them at all.
_SOON: Final = frozenset(
    f"{when}_{script}"
    for when in ("before", "after")
    for script in (
        *("commit", "settle", "record", "record_request", "update_state", "keep_blob"),
        "birth",
        *("store_insert", "store_update", "store_upsert", "store_delete"),
        *("store_select", "store_newest"),
        *("park", "revive", "end_quiet", "end_trace", "retire", "dismiss"),
    )
) | {"after_read", "after_handle", "after_quiet_read"}


class _Client:
    """A client of the HTTP interface: what is not answered is asked again, under the same key."""

    def __init__(self, apis: list[Process]) -> None:
        self._apis = apis
        self._keys = itertools.count()

    async def ask(self, kind: Kind) -> str:
        question = QUESTIONS[kind]
        message = {
            "target": question.target,
            "body": {"messages": [{"origin": "user", "type": "text", "text": question.text}]},
        }
        headers = {"Idempotency-Key": f"question-{next(self._keys)}"}
        deadline = time.monotonic() + PATIENCE_S
        for api in itertools.cycle(self._apis):
            if time.monotonic() > deadline:
                raise AssertionError("no API answers")
            if not api.running:
                continue
            await api.serving()
            async with httpx.AsyncClient(timeout=HTTP_PATIENCE_S) as client:
                try:
                    answer = await client.post(
                        f"{api.address}/messages", json=message, headers=headers
                    )
                except httpx.TransportError:
                    continue
            if answer.status_code == 202:
                return str(answer.json()["trace_id"])
            if answer.status_code < 500:
                raise AssertionError(answer.text)
        raise AssertionError("there is no API")


async def sweep(link: Link, keys: Keys, journal: str) -> None:
    """Nothing of the colony is left on the server."""
    cursor = b"0"
    while True:
        cursor, found = await link.command(
            "SCAN", cursor, "MATCH", f"colony:{{{keys.name}:*", "COUNT", 1000
        )
        if found:
            await link.command("UNLINK", *found)
        if cursor == b"0":
            break
    await link.command("UNLINK", journal)
