"""A colony over several hosts: what a test asks it, holds up in it and finds out about it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import httpx
import redis

from colony.body import Body, Entry
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.lua.registry import scripts
from colony.publication import Publication
from colony.testing.claims import eventually
from colony.testing.fleet import Fleet, Process
from colony.testing.nursery import Nursery
from colony.topology.load import load
from colony.topology.model import TopologySpec
from colony.traces import Traces
from tests.faults.hosts import Addresses, Host, Network, server_on

ROUNDS: Final = 3
TOOLS: Final = 2
CELLS: Final = ("/prep", "/planner", "/dispatch", "/a", "/b", "/collector", "/memory", "/sink")
CLAIM_IDLE_S: Final = 1.0
PATIENCE_S: Final = 60.0

_ROOT: Final = Path(__file__).parents[2]
_API: Final = 8420
_TOKEN: Final = "of-the-hosts"
_LONG_MS: Final = 60 * 60 * 1000


@dataclass(frozen=True)
class Site:
    """Hosts `a`, `b` and `c`, a host of the server, one of a client, and what starts processes."""

    network: Network
    nurseries: Mapping[str, Nursery]
    server: Addresses

    @classmethod
    @contextmanager
    def open(cls, binary: Path) -> Iterator[Self]:
        """Raises NamespacesRefused where networks cannot be made."""
        with ExitStack() as stack:
            network = stack.enter_context(Network("server", "a", "b", "c", "client"))
            server = stack.enter_context(server_on(network["server"], binary))
            nurseries = {}
            for name in "abc":
                # What it forks is on the host as well.
                with network[name].visited():
                    nurseries[name] = stack.enter_context(Nursery())
            yield cls(network, nurseries, server)


@dataclass
class HostColony:
    """One colony over the hosts of a site. Each host may run any of its processes."""

    site: Site
    keys: Keys
    link: Link
    fleets: Mapping[str, Fleet]
    holds: Path
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.traces = Traces(self.link, self.keys)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, site: Site, name: str, holds: Path, *, claim_idle_s: float = CLAIM_IDLE_S
    ) -> AsyncIterator[Self]:
        """The colony `name`; its processes are gone and every cut is undone afterwards."""
        link, keys = Link(site.server.aside), Keys(name)
        await Publication(link, keys).publish(_tree())
        environment = {
            "COLONY_CLAIM_IDLE_S": str(claim_idle_s),
            "COLONY_DRAIN_S": "1",
            "COLONY_API_TOKEN": _TOKEN,
            "PYTHONPATH": str(_ROOT),
            "HOLD": str(holds),
        }
        with ExitStack() as stack:
            stack.callback(site.network.mend)
            fleets = {}
            for host, nursery in site.nurseries.items():
                own = {**environment, "HOST": host}
                fleet = Fleet(nursery, site.server.network, name, environment=own)
                fleets[host] = stack.enter_context(fleet)
            try:
                yield cls(site, keys, link, fleets, holds)
            finally:
                await link.close()

    def __getitem__(self, name: str) -> Host:
        return self.site.network[name]

    # Processes

    async def pair(self, host: str, *, router: str = "") -> tuple[Process, Process]:
        """A router, with these faults, and a worker, both serving."""
        fleet = self.fleets[host]
        started = fleet.router(armed=router), fleet.worker()
        for process in started:
            await process.serving()
        return started

    async def api(self, host: str, *, armed: str = "") -> Process:
        """An API that other hosts reach."""
        return await self.fleets[host].api("--listen", f"0.0.0.0:{_API}", armed=armed).serving()

    async def leave(self, *processes: Process) -> None:
        """Tell processes to end; returns when they have, well."""
        for process in processes:
            process.terminate()
        assert [await process.ended() for process in processes] == [0] * len(processes)

    @contextmanager
    def tools_held(self, host: str) -> Iterator[None]:
        """Within the block, tool calls on a host are begun and not ended."""
        file = self.holds / host
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    async def tools_wait(self, host: str) -> None:
        """Returns when tool calls wait on a host."""
        await eventually(lambda: self._waiting(host), f"tools wait on {host}")

    async def tools_went_on(self, host: str) -> None:
        """Returns when none waits any more."""
        await eventually(lambda: not self._waiting(host), f"the tools on {host} end")

    def _waiting(self, host: str) -> list[Path]:
        return [*self.holds.glob(f"{host}-*")]

    # Questions

    async def ask(self, questions: int) -> list[str]:
        """Admit questions; returns their traces."""
        body = Body.of(Entry.say("user", "where?"))
        births = (self.traces.birth("/prep", body, ttl=1000) for _ in range(questions))
        asked = [birth.trace_id for birth in await asyncio.gather(*births)]
        self.asked += asked
        return asked

    async def answered(self, questions: list[str]) -> Counter[str]:
        """Once every question has ended: how many of its tool calls each host answered."""

        async def ended() -> bool:
            return len(await self._ended(questions)) == len(questions)

        await eventually(ended, "every question ends")
        ran: Counter[str] = Counter()
        for trace_id in questions:
            ran += await self._ran(trace_id)
        return ran

    @asynccontextmanager
    async def load(self, questions: int) -> AsyncIterator[Counter[str]]:
        """Within the block, that many are under way; how many tool calls each host answered."""
        ran: Counter[str] = Counter()
        enough = asyncio.Event()
        keeping = asyncio.create_task(self._keep(questions, ran, enough))
        try:
            yield ran
        finally:
            # Not cancelled: what was admitted has to be known.
            enough.set()
            await keeping

    async def post(self, host: str, *, timeout_s: float = PATIENCE_S) -> str:
        """Send a message to the API on a host, always with the same key; returns its trace."""

        def send() -> str:
            body = {"messages": [{"origin": "user", "type": "text", "text": "where?"}]}
            headers = {"Idempotency-Key": self.keys.name, "Authorization": f"Bearer {_TOKEN}"}
            with self["client"].visited():
                answer = httpx.post(
                    f"http://{self[host].address}:{_API}/messages",
                    json={"target": "/prep", "body": body},
                    headers=headers,
                    timeout=timeout_s,
                )
            return str(answer.raise_for_status().json()["trace_id"])

        return await asyncio.to_thread(send)

    async def _keep(self, questions: int, ran: Counter[str], enough: asyncio.Event) -> None:
        under_way: set[str] = set()
        while not enough.is_set():
            under_way |= {*await self.ask(questions - len(under_way))}
            for trace_id in await self._ended([*under_way]):
                under_way.remove(trace_id)
                ran += await self._ran(trace_id)
            await asyncio.sleep(0.01)

    async def _ended(self, questions: list[str]) -> list[str]:
        at = await self.link.command("ZMSCORE", self.keys.ended_traces(), *questions)
        return [q for q, ended in zip(questions, at, strict=True) if ended is not None]

    async def _ran(self, trace_id: str) -> Counter[str]:
        (output,) = await self.traces.outputs(trace_id)
        body: Any = output["body"]
        return Counter(body["messages"][-1]["text"].split())

    # Findings

    async def admitted(self) -> list[str]:
        """Every trace there is."""
        sets = self.keys.open_traces(), self.keys.ended_traces()
        found = [await self.link.command("ZRANGE", s, 0, -1) for s in sets]
        return [trace_id.decode() for ids in found for trace_id in ids]

    async def in_hand(self, process: Process, *sources: str) -> list[int]:
        """Of what a process holds of these sources, for how long each was not renewed, in ms.

        What it handed back is not in its hands.
        """
        consumer = f"{process.role}-{process.events('serving')[0]['slot']}"
        held = [await self._pending(source, consumer) for source in sources]
        return [idle for idles in held for idle in idles if idle < _LONG_MS]

    async def claims_ran_out(self) -> bool:
        """Whether every tool call that was begun may be taken by anybody."""
        sources = [self.keys.cell(path) for path in ("/a", "/b")]
        idles = [idle for source in sources for idle in await self._pending(source)]
        return bool(idles) and min(idles) > CLAIM_IDLE_S * 1000

    @contextmanager
    def watching(self) -> Iterator[set[tuple[str, str]]]:
        """After the block: on which host which role committed, by what the server was sent."""
        names = {host.address: name for name, host in self.site.network.hosts.items()}
        seen: set[tuple[str, str]] = set()
        sources = {self.keys.router(), *map(self.keys.cell, CELLS)}
        mark, sha = self.keys.name.upper(), scripts()["commit"].sha
        with redis.Redis.from_url(self.site.server.aside) as client, client.monitor() as monitor:
            yield seen
            with redis.Redis.from_url(self.site.server.aside) as other:
                other.echo(mark)
            for told in monitor.listen():
                words = told["command"].split(" ")
                if words[-1] == mark:
                    return
                if sha in words:
                    # Of all streams of work, a commit names its source first.
                    source = next(word for word in words if word in sources)
                    role = "router" if source == self.keys.router() else "worker"
                    seen.add((names[told["client_address"]], role))

    async def assert_sound(self) -> None:
        """Every question ended well, once, each of its rounds fired once, and nothing is left."""
        await self.answered(self.asked)
        assert sorted(await self.admitted()) == sorted(self.asked)
        for trace_id in self.asked:
            trace = await self.traces.get(trace_id)
            assert (trace.cause, trace.outputs, trace.dead, trace.live) == ("completed", 1, 0, 0)
            hops = await self.traces.log(trace_id)
            assert len({hop.head.id for hop in hops}) == len(hops)
            fired = [h.head.context["iter"] for h in hops if h.head.hop.get("route") == "fire"]
            assert sorted(fired, key=str) == [*range(1, ROUNDS + 1)], trace_id
        assert await self.link.command("XLEN", self.keys.dead()) == 0
        for stream in (self.keys.router(), *map(self.keys.cell, CELLS)):
            assert await self.link.command("XLEN", stream) == 0, stream

    async def _pending(self, source: str, *consumer: str) -> list[int]:
        pending = await self.link.command("XPENDING", source, GROUP, "-", "+", 10_000, *consumer)
        return [int(idle) for _, _, idle, _ in pending]


def late(process: Process) -> bool:
    """Whether a process has logged that others have what it held."""
    return any(process.events(name) for name in ("claim_lost", "late", "abandoned"))


def _tree() -> TopologySpec:
    """Questions of some rounds, each of two tools that run side by side."""
    spec = load(_ROOT / "bench" / "trees" / "rounds-settle", environment={}).publishable()
    calls = {"tool_calls": [{"name": "a"}, {"name": "b"}]}
    tool = {"handler": "tests.faults.host_tools:tool"}
    script = {"script": [*([calls] * ROUNDS), {"text": "{results}"}]}
    changed: Mapping[str, Mapping[str, Any]] = {"/a": tool, "/b": tool, "/planner": script}
    cells = (
        cell.model_copy(update={"params": {**cell.params, **changed.get(cell.path, {})}})
        for cell in spec.cells
    )
    return spec.model_copy(update={"cells": tuple(cells)})
