"""The research assistant under a router and workers that run: what its rounds outlast."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.dead_letters import DeadLetters
from colony.errors import CellError
from colony.keys import Keys
from colony.link import Link
from colony.operations import Select
from colony.pace import Pace
from colony.publication import Publication
from colony.roles import Router, Worker
from colony.schema import Schema
from colony.store.tables import StoreTables
from colony.testing.claims import eventually
from colony.topology.load import load
from colony.traces import Traces
from colony.trees import shipped
from workers.web_fetch.cell import WebFetch

KEYS = Keys("running")
PACE = Pace(claim_idle_ms=500, renew_ms=100, reclaim_ms=50, drain_ms=5_000, block_ms=50)
TREES = pytest.mark.parametrize("tree", ["research", "research-settle"])

SEARCH = {"id": "s", "name": "web_search", "arguments": {"query": "sun valve"}}
FETCH = {"id": "f", "name": "web_fetch", "arguments": {"url": "file:///dalen-sun-valve.md"}}
SCRIPT = [{"tool_calls": [SEARCH, FETCH]}, {"text": "done"}]


class Running:
    """The tree of one test, and the processes that serve it."""

    def __init__(self, url: str, tree: str) -> None:
        self.root = shipped(tree)
        self.spec = load(self.root, environment={}).publishable()
        self.link = Link(url)
        self.traces = Traces(self.link, KEYS)
        self.letters = DeadLetters(self.link, KEYS)
        self._url = url
        self._tasks: list[asyncio.Task[None]] = []

    async def apply(self) -> None:
        """Publish the tree with a model that asks for two tools and is done."""
        params = {"provider": "scripted", "script": SCRIPT}
        cells = tuple(
            cell.model_copy(update={"params": params}) if cell.path == "/planner" else cell
            for cell in self.spec.cells
        )
        spec = self.spec.model_copy(update={"cells": cells})
        await Publication(self.link, KEYS).publish(spec)

    def router(self) -> None:
        self._tasks.append(asyncio.create_task(Router(self._url, KEYS, PACE).serve()))

    def worker(self, *patterns: str) -> None:
        worker = Worker(
            self._url, KEYS, PACE, environment={}, root=self.root, patterns=patterns or ("*",)
        )
        self._tasks.append(asyncio.create_task(worker.serve()))

    async def ask(self, text: str = "When was it invented?", **context: str) -> str:
        body = Body.of(Entry.say("user", text))
        ttl = self.spec.settings.message_default_ttl
        return (await self.traces.birth("/prep", body, ttl=ttl, context={**context})).trace_id

    async def answer(self, trace_id: str) -> Any:
        """The one output of a trace, once it has ended well."""

        async def ended() -> bool:
            return (await self.traces.get(trace_id)).ended

        await eventually(ended)
        assert (await self.traces.get(trace_id)).cause == "completed"
        (output,) = await self.traces.outputs(trace_id)
        body: Any = output["body"]
        return body["messages"][-1]["text"]

    async def views(self) -> list[list[str]]:
        """What each question began with, as texts."""
        tables = StoreTables(
            self.link,
            KEYS,
            path="/memory",
            schema=Schema(),
            trace_id="none",
            envelope_id="test",
        )
        where = {"role": "user"}
        reply = await tables.execute(Select(table="thread", columns=("turn",), where=where))
        turns = [json.loads(str(row["turn"])) for row in reply.rows or ()]
        entries = [turn if isinstance(turn, list) else [turn] for turn in turns]
        return [[entry["text"] for entry in turn] for turn in entries]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close()


@pytest.fixture
async def running(redis_url: str, tree: str) -> AsyncIterator[Running]:
    running = Running(redis_url, tree)
    await running.apply()
    yield running
    await running.close()


@TREES
async def test_call_that_nobody_survives_is_told_to_the_model_and_its_round_completes(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    async def fail(self: WebFetch, envelope: Any, host: Any) -> Sequence[Any]:
        tries.append(envelope.id)
        raise CellError(detail="as if its process had died", retryable=True)

    monkeypatch.setattr(WebFetch, "handle", fail)
    running.router()
    running.worker()
    trace_id = await running.ask()

    assert await running.answer(trace_id) == "done"

    (letter,) = await running.letters.list()
    assert (letter.code, letter.trace_id) == ("delivery_limit", trace_id)
    assert len(tries) == running.spec.settings.max_deliveries
    told = [hop for hop in await running.traces.log(trace_id) if hop.head.target == "/planner"]
    assert len(told) == 2


@TREES
async def test_store_that_is_served_late_has_its_rounds_fire_when_it_is(running: Running) -> None:
    running.router()
    running.worker(*(cell.path for cell in running.spec.cells if cell.path != "/memory"))
    trace_id = await running.ask()
    waiting = KEYS.cell("/memory")

    async def all_there() -> bool:
        # The question, the answer of the model, and two results.
        return bool(await running.link.command("XLEN", waiting) == 4)

    await eventually(all_there)
    running.worker("/memory")

    assert await running.answer(trace_id) == "done"
    fires = [
        hop for hop in await running.traces.log(trace_id) if hop.head.hop.get("route") == "fire"
    ]
    assert len(fires) == 1
    assert await running.letters.count() == 0


@TREES
async def test_questions_of_many_sessions_at_once_are_each_told_what_was_said_in_theirs(
    running: Running,
) -> None:
    for _ in range(2):
        running.router()
        running.worker()
    asked = [(f"{session}{n}", session) for n in range(4) for session in "abcde"]
    traces = [await running.ask(text, session_id=session) for text, session in asked]
    for trace_id in traces:
        assert await running.answer(trace_id) == "done"

    views = await running.views()
    assert sorted(views) == sorted(
        [part for k in range(n) for part in (f"{session}{k}", "done")] + [f"{session}{n}"]
        for session in "abcde"
        for n in range(4)
    )
    assert await running.letters.count() == 0
