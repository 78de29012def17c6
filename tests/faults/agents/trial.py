"""A trial: one fault in one process of an agent at work, and what came of its runs."""

import asyncio
import itertools
import json
import random
import time
from contextlib import aclosing, suppress
from typing import Any, Final

from colony.access import Access
from colony.agent.events import Event
from colony.engine import Engine, Result
from colony.errors import AskNotPending, ServerUnavailable, StaleRunControl
from colony.keys import Keys
from colony.publication import Publication
from colony.testing.claims import comes_true
from colony.testing.fleet import Fleet, Process
from colony.testing.model_server import ModelServer
from tests.faults import trial as loop
from tests.faults.agents.clients import ByEngine, ByHttp, Client
from tests.faults.agents.judge import (
    Heard,
    faults_of_changes,
    faults_of_history,
    faults_of_log,
    faults_of_results,
    faults_of_text,
)
from tests.faults.agents.rows import AgentRow
from tests.faults.agents.tree import AGENT_CELLS, FOLDER, ROOT, TOOLS, answer, spec
from tests.faults.tree import Sums
from tests.faults.trial import PATIENCE_S, POLL_S, Ground

# Longer than a process that has just started may keep its loop from turning on a busy machine.
CLAIM_IDLE_S: Final = 1.0
RUNS: Final = 6
DEADLINE_MS: Final = 300
# So small that the first run is folded on its way.
SMALL_WINDOW: Final = 500

_numbers = itertools.count()


async def run(ground: Ground, row: AgentRow, seed: int) -> loop.Result:
    """One trial of a row; the same seed makes the same choices, but not the same timing."""
    for attempt in range(loop.TRIES):
        result = await _run_once(ground, row, random.Random(f"{row.name} {seed} {attempt}"))
        if not result.missed:
            break
    return result


async def _run_once(ground: Ground, row: AgentRow, rng: random.Random) -> loop.Result:
    name = f"agents-{next(_numbers)}"
    journal = f"journal-{name}"
    with ModelServer(answer) as model:
        environment = {
            "COLONY_CLAIM_IDLE_S": str(CLAIM_IDLE_S),
            "COLONY_DRAIN_S": "5",
            "FAULTS_JOURNAL": journal,
            "MODEL_URL": model.base_url,
        }
        with Fleet(ground.nursery, ground.url, name, environment=environment) as fleet:
            async with Access(ground.url, name) as access, Engine(access) as engine:
                handed: dict[str, Any] = {}
                if row.role == "keeper":
                    handed["ask_deadline_ms"] = DEADLINE_MS
                if row.moment == "folding":
                    handed["window"] = SMALL_WINDOW
                await Publication(ground.link, Keys(name)).publish(spec(**handed))
                trial = _Trial(row, rng, fleet, engine, model, journal)
                try:
                    return await trial.play()
                finally:
                    await trial.close()
                    fleet.close()
                    await loop.sweep(ground.link, Keys(name), journal)


class _Trial:
    def __init__(
        self,
        row: AgentRow,
        rng: random.Random,
        fleet: Fleet,
        engine: Engine,
        model: ModelServer,
        journal: str,
    ) -> None:
        self._row = row
        self._rng = rng
        self._fleet = fleet
        self._engine = engine
        self._model = model
        self._journal = journal
        self._heard = Heard()
        self._beside: list[asyncio.Task[Any]] = []
        self._session = ""
        self._hit: float | None = None
        self._recovery_s = 0.0
        self._victim: Process | None = None

    async def play(self) -> loop.Result:
        """Run until the fault has happened and others have taken over, and judge all of it."""
        sums = Sums()
        try:
            missed = await self._play(sums)
        except AssertionError as error:
            sums.stalled += 1
            sums.notes.append(str(error))
            missed = False
        if self._session:
            await self._judge(sums)
        if not sums.clean:
            sums.notes.append(self._logs())
        return loop.Result(sums, self._recovery_s, missed)

    async def close(self) -> None:
        """Nobody listens any more."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    async def _play(self, sums: Sums) -> bool:
        """Whether the fault never happened."""
        client = self._start()
        self._session = await client.make_session()
        self._beside.append(asyncio.create_task(self._listen(client)))
        for _ in range(RUNS):
            result = await self._run(client, sums, cancel=self._row.point.endswith("end_run"))
            if result.progress == "visible" and result.state == "failed":
                # What was shown is superseded only where a person wants it.
                again = await self._engine.retry(self._session)
                sums.accepted += 1
                result = await self._ended(again.id, sums)
            sums.lost += result.state not in ("completed", "cancelled")
            if result.state == "failed":
                sums.notes.append(f"failed: {result}")
            await client.copy(self._session)
            if self._happened():
                break
        else:
            return True
        if self._victim is not None and self._row.action == "stop":
            self._victim.resume()
        await self._run(client, sums)
        if not await comes_true(self._at_rest, patience_s=PATIENCE_S):
            sums.stalled += 1
            sums.notes.append("not at rest")
        return False

    async def _run(self, client: Client, sums: Sums, *, cancel: bool = False) -> Result:
        """A run from its prompt to its result; the fault may happen on its way."""
        run_id = await client.prompt(self._session)
        sums.accepted += 1
        if self._row.role == "api":
            await client.steer(self._session, run_id)
        if cancel:
            await client.cancel(self._session, run_id)
        return await self._ended(run_id, sums)

    async def _ended(self, run_id: str, sums: Sums) -> Result:
        ending = asyncio.create_task(self._engine.attach(self._session, run_id).result())
        self._beside.append(ending)
        deadline = time.monotonic() + PATIENCE_S
        while not ending.done():
            if time.monotonic() > deadline:
                raise AssertionError(f"{run_id} does not end")
            self._take_over()
            await asyncio.wait([ending], timeout=POLL_S)
        sums.ended += 1
        if self._hit is not None and not self._recovery_s:
            self._recovery_s = time.monotonic() - self._hit
        return await ending

    # Processes

    def _start(self) -> Client:
        """All roles, one of them with the fault."""
        row = self._row
        armed = f"{row.point}={row.action}@{self._rng.randint(1, row.passages)}"
        at = {row.role: armed} if row.point else {}
        router = self._fleet.router(armed=at.get("keeper", ""))
        agent = self._worker(AGENT_CELLS, armed=at.get("agent", ""))
        tools = self._worker(*TOOLS, armed=at.get("tools", ""))
        self._victim = {"keeper": router, "agent": agent, "tools": tools}.get(row.role)
        if row.role != "api":
            return ByEngine(self._engine)
        self._victim = self._fleet.api(armed=armed)
        return ByHttp([self._victim, self._fleet.api()])

    def _worker(self, *cells: str, armed: str = "") -> Process:
        patterns = [part for cell in cells for part in ("--cells", cell)]
        return self._fleet.worker("--root", str(ROOT), *patterns, armed=armed)

    def _happened(self) -> bool:
        if self._hit is None and self._victim is not None and self._victim.events("fault"):
            self._hit = time.monotonic()
        return self._hit is not None

    def _take_over(self) -> None:
        """Somebody else does what the victim did, once it is struck."""
        if self._victim is None or len(self._fleet.processes) > 4 or not self._happened():
            return
        if self._row.role == "keeper":
            self._fleet.router()
        elif self._row.role == "agent":
            self._worker(AGENT_CELLS)
        elif self._row.role == "tools":
            self._worker(*TOOLS)

    def _strike(self) -> None:
        """Kill who is at work at this moment."""
        if self._hit is None and self._victim is not None:
            self._victim.kill()
            self._hit = time.monotonic()

    # Whoever follows

    async def _listen(self, client: Client) -> None:
        """Hear everything, strike at the moment that is tried, and answer what is asked."""
        self._beside.append(asyncio.create_task(self._watch()))
        frames = self._engine.follow(self._session)
        async with aclosing(frames):
            async for frame in frames:
                self._heard.hear(frame)
                event = frame.event
                if event is None:
                    continue
                if self._row.moment == "model_is_visible" and event.kind == "message.delta":
                    self._strike()
                if event.kind == "permission.ask" and self._row.role != "keeper":
                    self._beside.append(asyncio.create_task(self._answer(client, event)))

    async def _watch(self) -> None:
        """Strike when a model was asked, or a tool has begun."""
        while self._hit is None:
            if self._row.moment == "model_waits" and self._asked("small"):
                self._strike()
            if self._row.moment == "folding" and self._asked(FOLDER):
                self._strike()
            if self._row.moment in ("look_runs", "change_runs"):
                tools = [line["tool"] for line in await self._journalled()]
                if self._row.moment.removesuffix("_runs") in tools:
                    self._strike()
            await asyncio.sleep(POLL_S / 4)

    def _asked(self, model: str) -> bool:
        return any(request.body.get("model") == model for request in self._model.requests)

    async def _answer(self, client: Client, event: Event) -> None:
        if self._row.moment == "ask_is_pending" and self._hit is None:
            for process in self._fleet.processes:
                process.kill()
            self._hit = time.monotonic()
            self._fleet.router()
            self._worker("*")
        with suppress(AskNotPending, StaleRunControl):
            await client.resolve(self._session, event, "allow_once")

    # Judging

    async def _journalled(self) -> list[dict[str, Any]]:
        try:
            lines = await self._engine.access.link.command("LRANGE", self._journal, 0, -1)
        except ServerUnavailable:
            return []
        return [json.loads(line) for line in lines]

    async def _at_rest(self) -> bool:
        keys, link = self._engine.access.keys, self._engine.access.link
        waiting = await link.command("ZCARD", keys.ask_deadlines())
        opened = await link.command("ZCARD", keys.open_traces())
        return not int(waiting) and not int(opened)

    async def _judge(self, sums: Sums) -> None:
        link, keys = self._engine.access.link, self._engine.access.keys
        found = await link.command("XRANGE", keys.session_events(self._session), "-", "+")
        events = [Event.logged(entry, fields) for entry, fields in found]
        rows = await self._engine.transcript(self._session)
        session = await self._engine.session(self._session)
        wrong = [
            *faults_of_log(events),
            *faults_of_text(events, self._heard),
            *faults_of_history(rows, ended=session.state == "completed"),
            # A change that was begun and not ended is an error; so is one that nobody allowed.
            *faults_of_results(
                events, may_fail=("change",) if self._row.role in ("tools", "keeper") else ()
            ),
        ]
        twice = faults_of_changes(await self._journalled())
        refused = [str(request.body) for request in self._model.refused]
        sums.doubled += len(twice) + sum("twice" in text for text in wrong)
        sums.lost += len(wrong) + len(refused)
        sums.notes += [*wrong, *twice, *refused]

    def _logs(self) -> str:
        return "\n".join(
            f"--- {p.role} {p.pid}: {p.status}\n{p.log}" for p in self._fleet.processes
        )
