"""The agent that is simulated: it does what a plan says, turn after turn, as a model would.

A turn has groups of calls. The calls of one group go on to the next turn themselves; several groups
come to rest, and the quiet lane goes on for them.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from pydantic import JsonValue

from colony.agent.asks import Ask
from colony.agent.changes import End
from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.agent.record import Disposition, SessionRecord
from colony.body import Body, Entry, Frozen
from colony.cell import Cell
from colony.envelope import Emission, Envelope, derived_id
from colony.host import Host
from colony.keys import Keys
from colony.link import Link
from colony.topology.model import (
    QUIET,
    CellSettings,
    CellSpec,
    ColonySettings,
    EdgeSpec,
    Topology,
    TopologySpec,
)
from colony.workshop import Hosted
from tests.simulator.tree import INLINE_MAX_BYTES, MAX_DELIVERIES, REVIVALS, Tree

AGENT, PERMIT, WORK, ASIDE = "/agent", "/permit", "/work", "/aside"
SESSIONS = derived_id("session", "one"), derived_id("session", "two")
# An ask is overdue at once, or never.
OVERDUE, NEVER = 1, 10**15

Ending = Literal["completed", "retryable", "permanent", "owed"]
Step = Callable[[Envelope, RunInHand, Host], Awaitable[list[Emission]]]


class Plan(Frozen):
    """What becomes of a run: how many asks each group of each turn has, and how it ends.

    One that `stalls` does nothing from its first turn on; `asides` are not waited for.
    """

    rounds: tuple[tuple[int, ...], ...] = ()
    end: Ending = "completed"
    stalls: bool = False
    asides: bool = False

    @classmethod
    def by(cls, random: Random) -> "Plan":
        """Some plan."""
        shapes = ((0,), (1,), (2,), (3,), (1, 2), (2, 0), (1, 1, 1))
        ends: tuple[Ending, ...] = ("completed", "completed", "completed", "retryable",
                                    "permanent", "owed")  # fmt: skip
        return cls(
            rounds=tuple(random.choices(shapes, k=random.randint(0, 2))),
            end=random.choice(ends),
            stalls=random.random() < 0.08,
            asides=random.random() < 0.3,
        )

    @classmethod
    def of(cls, envelope: Envelope, run: RunInHand) -> "Plan":
        """That of a run, as its prompt says; one that nobody has said is any."""
        said = envelope.body.last("user")
        text = run.record.fields.get("plan") or (said.text if said else "") or ""
        text, _, _ = text.partition("\n")
        return cls.model_validate_json(text) if text else cls.by(Random(run.id))


def session_record(name: str) -> SessionRecord:
    """A session as a client knows it."""
    return SessionRecord(
        id=name, agent=AGENT.strip("/"), owner="", state="idle", created_at=0, updated_at=0
    )


async def think(envelope: Envelope, run: RunInHand, host: Host) -> list[Emission]:
    """A turn: what it was told is taken up, and calls follow; or the end of the run."""
    plan, turn = Plan.of(envelope, run), run.record.turn + 1
    if plan.stalls and turn > 0:
        return []
    steers = run.take_steers()
    for text in steers:
        run.event("steer", turn=turn, text=text)
    run.put(plan=plan.model_dump_json(), turn=turn, open_calls="")
    run.count(turns=1)
    run.event("turn.start", turn=turn)
    run.tell("message.delta", turn=turn, text="so")
    if turn % 2:
        await host.show(f"turn {turn}")
    said = Entry.say("assistant", f"turn {turn}")
    run.remember(HistoryRow(kind="assistant", run_id=run.id, turn=turn, entries=(said,)))
    over = turn >= len(plan.rounds) and not steers
    if over:
        _finish(plan, run)
        return [_goes("again")]
    groups = plan.rounds[turn] if turn < len(plan.rounds) else (0,)
    aside = [_goes("aside")] if plan.asides else []
    return [*aside, *_calls(groups, turn)]


def _calls(groups: Sequence[int], turn: int) -> Iterator[Emission]:
    for group, asks in enumerate(groups):
        yield _goes("permit", group=group, asks=asks, turn=turn, direct=len(groups) == 1)


def _finish(plan: Plan, run: RunInHand) -> None:
    if plan.end == "owed" and run.record.kind == "retry":
        run.finish(End("budget"))
        run.put_in_session(state="idle", retry_pending=1)
    elif plan.end in ("retryable", "permanent"):
        disposition: Disposition = "retryable" if plan.end == "retryable" else "permanent"
        run.finish(End("error", error="boom", disposition=disposition, progress="precommit"))
    else:
        run.finish(End("end_turn", text="done"))
    run.put_in_session(said_last=run.id)


async def permit(envelope: Envelope, run: RunInHand, host: Host) -> list[Emission]:
    """The calls of a group are let out, once what is to be asked about them is answered."""
    asks = [*_asks(envelope, run)]
    turn = _number(envelope, "turn")
    if asks and "decided" not in envelope.hop:
        open_calls = json.dumps([[ask.call_id, ask.tool] for ask in asks])
        if envelope.hop["direct"]:
            run.put(open_calls=open_calls)
        for ask in asks:
            run.event("tool.call", turn=turn, call_id=ask.call_id, name=ask.tool)
            run.ask(ask)
        return []
    for ask in asks:
        decision = run.decisions.get(ask.id)
        verdict = "none" if decision is None else decision.verdict
        run.event("tool.result", turn=turn, call_id=ask.call_id, ask_id=ask.id, verdict=verdict)
    run.put(open_calls="")
    return [_goes("work", **{name: envelope.hop[name] for name in ("turn", "group", "direct")})]


def _asks(envelope: Envelope, run: RunInHand) -> Iterator[Ask]:
    turn, group = _number(envelope, "turn"), _number(envelope, "group")
    for number in range(_number(envelope, "asks")):
        call_id = f"{turn}-{group}-{number}"
        args: dict[str, JsonValue] = {"command": call_id}
        ask = Ask.of_call(run.id, call_id, "bash", args, turn=turn, reason="why")
        overdue = int(ask.id[0], 16) % 3 == 0
        yield ask.model_copy(
            update={"deadline": OVERDUE if overdue else NEVER, "rule": f"bash({number})"}
        )


async def work(envelope: Envelope, run: RunInHand, host: Host) -> list[Emission]:
    """A call is made."""
    run.count(tool_calls=1)
    return [_goes("again")] if envelope.hop["direct"] else []


async def aside(envelope: Envelope, run: RunInHand, host: Host) -> list[Emission]:
    """Something that nobody waits for."""
    run.event("hook", seam="aside")
    return []


def _goes(route: str, **hop: JsonValue) -> Emission:
    return Emission(hop={"route": route, **hop}, body=Body(messages=()))


def _number(envelope: Envelope, name: str) -> int:
    found = envelope.hop[name]
    assert isinstance(found, int)
    return found


STEPS: Mapping[str, Step] = {AGENT: think, PERMIT: permit, WORK: work, ASIDE: aside}


class Stepper(Cell):
    """A cell that makes one step of a run."""

    def __init__(self, step: Step) -> None:
        super().__init__(Cell.Params())
        self._step = step

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        run = await host.run()
        # A server that lost the run may still have known of an envelope.
        return [] if run is None else await self._step(envelope, run, host)


@dataclass(frozen=True)
class AgentTree(Tree):
    """The tree of the agent."""

    @classmethod
    def grow(cls, *, mends: bool = True) -> "AgentTree":
        """The tree, the same in any case."""
        spec = TopologySpec(
            settings=ColonySettings(
                message_default_ttl=1000,
                quiet_revivals=REVIVALS,
                max_deliveries=MAX_DELIVERIES,
                blob_inline_max_bytes=INLINE_MAX_BYTES,
                trace_bodies="none",
            ),
            hives=("/",),
            cells=tuple(
                CellSpec(
                    path=path,
                    cell=CellSettings(type="code"),
                    params={"handler": f"{step.__module__}:{step.__name__}"},
                )
                for path, step in STEPS.items()
            ),
            edges=(
                _edge(AGENT, PERMIT, "hop.route == 'permit'"),
                _edge(AGENT, ASIDE, "hop.route == 'aside'"),
                _edge(AGENT, AGENT, "hop.route == 'again'"),
                _edge(PERMIT, WORK, "hop.route == 'work'"),
                _edge(WORK, AGENT, "hop.route == 'again'"),
                _edge(QUIET, AGENT, f"hop.entry == '{AGENT}'"),
            ),
        )
        return cls(spec, Topology.compile(spec, 1), {})

    async def staff(self, link: Link, keys: Keys) -> dict[str, Hosted]:
        """Every cell of the tree."""
        hosted = {}
        for path, step in STEPS.items():
            spec, gate = self.topology.cells[path], asyncio.Semaphore(10_000)
            hosted[path] = Hosted(Stepper(step), spec, spec, None, (), None, gate)
        return hosted


def _edge(source: str, target: str, condition: str) -> EdgeSpec:
    return EdgeSpec(source=source, target=target, condition=condition)
