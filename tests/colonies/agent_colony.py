"""A colony with one agent as it is run here: stepped, with a script for its model."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from colony.agent.events import Event
from colony.agent.history import HistoryRow
from colony.agent.record import RunKind, RunRecord, SessionRecord
from colony.body import Entry
from colony.engine import Engine
from colony.runs import AgentSessions, Runs
from colony.testing.harness import Choice, Harness, first_come
from colony.topology.load import load
from colony.topology.model import TopologySpec

ROOT = Path(__file__).resolve().parents[2]
AGENT = "/assistant"

Beside = tuple[Harness, Engine]

BEHIND = {"before_prompt": "intake", "before_tool": "permit", "at_end": "finish"}
ALLOWED = {"allow": ["look", "change", "break"]}


def agent_tree(
    root: Path, *, seams: Mapping[str, str] | None = None, **handed: Any
) -> TopologySpec:
    """A tree with an agent and three tools: one that looks, one that breaks, one that changes.

    `seams` are the handlers of cells that stand at its seams, by the name of the seam.
    """
    hop = {"route": {"type": "string"}, "error_code": {"type": "string", "required": False}}
    tools = {"look": True, "change": False, "break": True}
    edges: list[dict[str, Any]] = []
    for name, read_only in tools.items():
        tool = {
            "name": name,
            "description": f"To {name}.",
            "parameters": {"type": "object"},
            "read_only": read_only,
        }
        cell = {
            "cell": {"type": "code"},
            "params": {"handler": f"tests.colonies.agent_tools:{name}_"},
            "contract": {
                "version": "1",
                "settings": {},
                "consumes": {},
                "emits": {"hop": hop},
                "tool": tool,
            },
        }
        _write(root / "main" / name, cell)
        condition = f"hop.route == 'tool' && has(hop.tool_name) && hop.tool_name == '{name}'"
        edges.append({"from": f".{AGENT}/permit", "to": f"./{name}", "condition": condition})
        edges.append({"from": f"./{name}", "to": f".{AGENT}/collector"})
    for seam, handler in (seams or {}).items():
        params = {"handler": f"tests.colonies.agent_tools:{handler}"}
        _write(root / "main" / seam, {"cell": {"type": "code"}, "params": params})
        edges.append({"from": f"./{seam}", "to": f".{AGENT}/{BEHIND[seam]}"})
        handed[seam] = f"../{seam}"
    _write(root / "main", {"cell": {"type": "hive"}, "params": {"graph": {"edges": edges}}})
    values = {"provider": "scripted", "stream": False, "permissions": ALLOWED, **handed}
    hive = {"cell": {"type": "hive"}, "params": {"template": "agent", "with": values}}
    _write(root / "main" / "assistant", hive)
    return load(root, environment={}).publishable()


@asynccontextmanager
async def engine_beside(redis_url: str, root: Path, **handed: Any) -> AsyncIterator[Beside]:
    """A stepped colony with an agent, and an engine of an application beside it."""
    harness = Harness(redis_url, agent_tree(root, **handed), root=ROOT)
    async with harness, await Engine.connect(redis_url, colony=harness.keys.name) as engine:
        yield harness, engine


class AgentColony:
    """An agent that runs one step at a time, and one session of it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.session_id = ""
        self._sessions = AgentSessions(harness.link, harness.keys)
        self._runs = Runs(harness.link, harness.keys)

    async def run(self, text: str = "Go.", *, choose: Choice = first_come, **begun: Any) -> str:
        """A run from its beginning until nothing of it moves any more; its id."""
        run_id = await self.begin(text, **begun)
        await self.harness.finish(choose)
        return run_id

    async def begin(
        self,
        text: str = "Go.",
        *,
        kind: RunKind = "prompt",
        limits: Mapping[str, Any] | None = None,
    ) -> str:
        """Begin a run, which has not moved yet; its id."""
        if not self.session_id:
            self.session_id = (await self._sessions.create(AGENT.removeprefix("/"), owner="me")).id
        session = await self.session()
        said = [Entry.say("user", text)] if kind == "prompt" else []
        bounds = session.limits.tightened(limits or {})
        return (await self._runs.begin(session, kind, said, limits=bounds)).run_id

    async def steer(self, text: str) -> None:
        """Say something to the run under way."""
        await self._runs.steer(self.session_id, text, token=text)

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run; False where it had ended before."""
        return await self._runs.end(run_id, self.session_id, cause="cancelled", reason="by hand")

    async def session(self) -> SessionRecord:
        """The record of the session."""
        return await self._sessions.get(self.session_id)

    async def record(self, run_id: str) -> RunRecord:
        """The record of a run."""
        return await self._runs.get(run_id)

    async def events(self, run_id: str | None = None) -> list[Event]:
        """The events in the log, of a run or of all."""
        key = self.harness.keys.session_events(self.session_id)
        found = await self.harness.link.command("XRANGE", key, "-", "+")
        events = [Event.logged(entry, fields) for entry, fields in found]
        return [event for event in events if run_id in (None, event.run_id)]

    async def kinds(self, run_id: str | None = None) -> list[str]:
        """What kinds of events are in the log."""
        return [event.kind for event in await self.events(run_id)]

    async def result(self, run_id: str) -> Mapping[str, Any]:
        """What the one result of a run says, behind which there is nothing."""
        events = await self.events(run_id)
        assert [event.kind for event in events].count("result") == 1
        assert events[-1].kind == "result"
        return events[-1].payload

    async def history(self) -> list[HistoryRow]:
        """What the session remembers."""
        return await self._sessions.history(self.session_id)

    async def asked(self, run_id: str, cell: str = "model") -> int:
        """How often a model was asked in a run."""
        hops = await self.harness.hops(run_id)
        return sum(hop.head.target == f"{AGENT}/{cell}" for hop in hops)


def calls(*names: str, number: int = 0, **usage: int) -> dict[str, Any]:
    """An answer of a script with these calls, each with an id of its own."""
    made = [{"id": f"c{number}-{n}", "name": name, "arguments": {"n": f"{number}-{n}"}}
            for n, name in enumerate(names)]  # fmt: skip
    return {"tool_calls": made, **_costing(usage)}


def says(text: str, **usage: int) -> dict[str, Any]:
    """An answer of a script that says something."""
    return {"text": text, **_costing(usage)}


def rounds(names: Sequence[Sequence[str]], last: str = "Done.") -> list[dict[str, Any]]:
    """A script that makes these rounds of calls and answers then."""
    return [*(calls(*found, number=n) for n, found in enumerate(names)), says(last)]


def _costing(usage: Mapping[str, int]) -> dict[str, Any]:
    return {"usage": dict(usage)} if usage else {}


def _write(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
