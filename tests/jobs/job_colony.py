"""A colony of processes whose cells run as jobs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colony.body import Body, Entry
from colony.dead_letters import DeadLetters
from colony.envelope import new_id
from colony.jobs.order import queue_of
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.claims import eventually
from colony.testing.fleet import Fleet, Process
from colony.testing.nursery import Nursery
from colony.topology.model import CellSettings, CellSpec, ColonySettings, EdgeSpec, TopologySpec
from colony.traces import Traces

HANDLERS = Path(__file__).parent / "handlers"
PROGRAMS = {
    "/work": "job_acts:handle",
    "/change": "job_acts:change",
    "/look": "job_acts:look",
    "/block": "job_acts:block",
}
SCRIPT = """\
import json, sys
message = json.load(sys.stdin)
text = message["body"]["messages"][-1]["text"].upper()
said = {"origin": "assistant", "type": "text", "text": text}
json.dump({"messages": [said]}, sys.stdout)
"""


class JobColony:
    """Processes of a colony with one cell for each program; what it emits goes to `/sink`."""

    def __init__(self, nursery: Nursery, url: str, folder: Path) -> None:
        self.mark = f"m{new_id()[-10:]}"
        self.journal = folder / "journal"
        self.journal.touch()
        self.link = Link(url)
        self.keys = Keys("jobbing")
        self.traces = Traces(self.link, self.keys)
        self.letters = DeadLetters(self.link, self.keys)
        self.fleet = Fleet(
            nursery,
            url,
            "jobbing",
            environment={
                "PYTHONPATH": str(HANDLERS),
                "JOB_JOURNAL": str(self.journal),
                "JOB_MARK": self.mark,
                "COLONY_CLAIM_IDLE_S": "2",
            },
        )

    async def apply(
        self,
        *,
        timeout_ms: int = 60_000,
        message_timeout: int | None = None,
        concurrency: int = 4,
    ) -> None:
        """Publish the tree; `timeout_ms` is that of every program."""
        settings = CellSettings(type="code", isolation="job", message_timeout=message_timeout)
        cells = [
            CellSpec(
                path=path,
                cell=settings,
                params={
                    "handler": handler,
                    "external_timeout_ms": timeout_ms,
                    "max_concurrency": concurrency,
                },
            )
            for path, handler in PROGRAMS.items()
        ]
        cells.append(CellSpec(path="/script", cell=settings, params={"script_inline": SCRIPT}))
        sink = CellSpec(path="/sink", cell=CellSettings(type="sink"))
        edges = tuple(EdgeSpec(source=path, target="/sink") for path in (*PROGRAMS, "/script"))
        spec = TopologySpec(
            settings=ColonySettings(message_timeout_default_ms=1_000),
            cells=(*cells, sink),
            edges=edges,
        )
        await Publication(self.link, self.keys).publish(spec)

    async def serve(self, **timeouts: Any) -> tuple[Process, Process]:
        """A router and a worker, and a job process; returns the last two."""
        await self.apply(**timeouts)
        self.fleet.router()
        worker, jobs = self.fleet.worker(), self.fleet.jobs()
        await self.until(lambda: bool(jobs.events("taking_jobs")), "a job process")
        return worker, jobs

    async def ask(self, target: str, act: str) -> str:
        """Send an act to a cell, as a call where it is a tool; returns the trace id."""
        if target in ("/change", "/look"):
            call = Entry.call("c1", {"act": act})
            body = Body.of(call)
        else:
            body = Body.of(Entry.say("user", act))
        return (await self.traces.birth(target, body, ttl=64)).trace_id

    async def outputs(self, trace_id: str) -> list[dict[str, Any]]:
        """What the trace has kept, once it has ended."""

        async def ended() -> bool:
            return (await self.traces.get(trace_id)).ended

        await self.until(ended, "end of the trace")
        return await self.traces.outputs(trace_id)

    async def until(self, claim: Callable[[], object], what: str) -> None:
        """Returns as soon as the claim holds; what was logged is told where it never does."""
        try:
            await eventually(claim, what)
        except AssertionError as late:
            late.add_note(self.logs())
            raise

    async def until_waiting(self, count: int) -> None:
        """Returns as soon as so many jobs wait in the queue."""

        async def waiting() -> bool:
            queue = f"rq:queue:{queue_of(self.keys)}"
            return bool(await self.link.command("LLEN", queue) == count)

        await self.until(waiting, f"{count} waiting jobs")

    async def until_taken_over(self, path: str, count: int) -> None:
        """Returns as soon as so many envelopes of a cell are in the hands of a second worker."""
        pending = "XPENDING", self.keys.cell(path), GROUP, "-", "+", count

        async def taken_over() -> bool:
            return sum(times > 1 for *_, times in await self.link.command(*pending)) >= count

        await self.until(taken_over, f"{count} envelopes in other hands")

    def noted(self) -> list[str]:
        """What the acts have noted."""
        return self.journal.read_text().splitlines()

    def go_on(self, name: str) -> None:
        """Let an act go on that waits at a gate."""
        self.journal.with_name(name).touch()

    def horse(self, jobs: Process) -> int:
        """The process that does a job, as the job process knows it."""
        return int(jobs.events("job_begun")[-1]["pid"])  # type: ignore[call-overload]

    def survivors(self) -> list[int]:
        """The processes that an act has left behind."""
        return [pid for pid in _processes() if self.mark in _arguments(pid)]

    def logs(self) -> str:
        """What every process has logged."""
        return "\n".join(f"--- {p.role} {p.pid}\n{p.log}" for p in self.fleet.processes)


def text_of(output: dict[str, Any]) -> str:
    """The text of the one entry of an output."""
    return str(output["body"]["messages"][-1]["text"])


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _arguments(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = Path(f"/proc/{pid}/comm").read_text()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return "" if state == "Z" else f"{command.decode(errors='replace')} {name}"
