"""The tree that is simulated: a tool loop with either join, a fan without a store, and cells where
the traces of a session come one after the other."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.host import Host
from colony.keys import Keys
from colony.link import Link
from colony.topology.model import (
    QUIET,
    CellSettings,
    CellSpec,
    ColonySettings,
    EdgeSpec,
    ModifierSpec,
    Topology,
    TopologySpec,
)
from colony.workshop import Hosted, Workshop
from workers.code.given import given
from workers.toolloop.close import close, close_settling
from workers.toolloop.collect import collect
from workers.toolloop.dispatch import dispatch
from workers.toolloop.drain import drain
from workers.toolloop.params import ThreadParams
from workers.toolloop.prep import prep, prep_settling
from workers.toolloop.requests import insert
from workers.toolloop.settle import settle

Handler = Callable[..., Emission | list[Emission] | None]

SETTLE, CLASSIC, FAN = "/settle/prep", "/classic/prep", "/fan"
ENTRIES = (SETTLE, CLASSIC, FAN)
LOOPS = (SETTLE, CLASSIC)
# A trace that is born into its session, and one that learns of it on the way.
TURN, LATE = "/turns/ask", "/turns/late"
SESSION_ENTRIES = (TURN, TURN, TURN, LATE, FAN, SETTLE)
# From the first to the second, the order of the session is kept.
BEFORE_THE_TURN = (TURN, LATE)
IN_TURN = ("/turns/work", "/turns/aside")
# A fan comes to two emissions, each along two edges.
OUTPUTS = {FAN: 4, TURN: 3, LATE: 2}
FAN_NOTES = 2
REVIVALS = 3
INLINE_MAX_BYTES = 900
MAX_DELIVERIES = 4

ROUNDS: tuple[JsonValue, ...] = (
    {"tool_calls": [{"id": "p", "name": "a"}, {"id": "q", "name": "b"}]},
    {"tool_calls": [{"id": "p", "name": "b"}, {"id": "q", "name": "a"}, {"id": "r", "name": "a"}]},
    {"text": "done"},
)

TABLES: dict[str, JsonValue] = {
    "thread": {
        "columns": {"turn_id": "text", "iter": "int", "role": "text", "call_id": "text",
                    "turn": "text", "fired": "int"},
        "unique": [["turn_id", "iter", "role", "call_id"]],
        "index": ["turn_id", "fired"],
    },
    "errors": {"columns": {"id": "text", "kind": "text", "question": "text", "payload": "text"}},
}  # fmt: skip
NOTES: dict[str, JsonValue] = {"notes": {"columns": {"id": "text", "trace_id": "text"}}}


def once(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A tool: a result for each call."""
    calls = envelope.body.each("tool_call")
    return [Emission.of(Entry.result(call.id or "", "42"), route="c_res") for call in calls]


def twice(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A tool that gives each result two times."""
    return [emission for _ in range(2) for emission in once(envelope, params)]


def split(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """The first cell of the fan."""
    return [Emission(hop={"part": part}, body=envelope.body) for part in (1, 2)]


def ask(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """What waits for its turn, and something beside it that another session has no say in."""
    aside = Emission(hop={"route": "aside"}, body=envelope.body)
    return [aside, *ask_late(envelope, params)]


def ask_late(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """Two envelopes that wait for their turn."""
    return [Emission(hop={"route": "on", "part": part}, body=envelope.body) for part in (1, 2)]


def pass_on(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """What comes in goes out."""
    return Emission(body=envelope.body)


def note(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """A row for each envelope, in a table where nothing keeps it from being there twice."""
    row: dict[str, JsonValue] = {"id": envelope.id, "trace_id": envelope.trace_id}
    return insert("notes", row, route="note")


def hear(envelope: Envelope, params: Mapping[str, JsonValue]) -> None:
    """Nothing follows."""


def never_mend(envelope: Envelope, own: ThreadParams) -> list[Emission]:
    """A closer that does not fill what an open round misses, but gives the question up."""
    if envelope.hop.get("route") == "quiet":
        return close(envelope, own)
    return close(envelope.model_copy(update={"body": Body(messages=())}), own)


class Pure(Cell):
    """A cell that is one function, called in the event loop: a thread would have its own order."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(Cell.Params())
        self._handler = handler
        self._given = given(handler, {})

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        made = self._handler(envelope, self._given)
        return [made] if isinstance(made, Emission) else made or []


@dataclass(frozen=True)
class Tree:
    """The tree as it is published and as it runs."""

    spec: TopologySpec
    topology: Topology
    handlers: Mapping[str, Handler]

    @classmethod
    def grow(cls, *, mends: bool = True) -> "Tree":
        """The tree; without `mends` its quiet lane fills no round."""
        handlers: dict[str, Handler] = {
            "/settle/prep": prep_settling,
            "/settle/collector": settle,
            "/settle/closer": close_settling if mends else never_mend,
            "/classic/prep": prep,
            "/classic/collector": collect,
            "/classic/closer": close if mends else never_mend,
            FAN: split,
            "/left": pass_on,
            "/right": pass_on,
            "/join": pass_on,
            "/note": note,
            "/heard": hear,
            TURN: ask,
            LATE: ask_late,
            "/turns/work": pass_on,
            "/turns/aside": pass_on,
            "/turns/tell": pass_on,
        }
        for hive in ("/settle", "/classic"):
            handlers |= {f"{hive}/dispatch": dispatch, f"{hive}/a": once, f"{hive}/b": twice}
            handlers |= {f"{hive}/drain": drain}
        spec = TopologySpec(
            settings=ColonySettings(
                message_default_ttl=1000,
                quiet_revivals=REVIVALS,
                max_deliveries=MAX_DELIVERIES,
                blob_inline_max_bytes=INLINE_MAX_BYTES,
                trace_bodies="none",
            ),
            hives=("/", "/settle", "/classic", "/notes", "/turns"),
            cells=tuple(_cells(handlers)),
            edges=(*_loop("/settle"), *_loop("/classic"), *_fan(), *_turns()),
        )
        return cls(spec, Topology.compile(spec, 1), handlers)

    async def staff(self, link: Link, keys: Keys) -> dict[str, Hosted]:
        """Every cell of the tree, started."""
        patterns = ("*/planner", "*/memory", "/sink")
        workshop = Workshop(link, keys, patterns=patterns, environment={})
        await workshop.follow(self.topology)
        assert not workshop.failed, workshop.failed
        hosted = dict(workshop.cells)
        for path, handler in self.handlers.items():
            spec = self.topology.cells[path]
            hosted[path] = Hosted(Pure(handler), spec, spec, None, (), None, asyncio.Semaphore(1))
        # Whoever waits at a gate would hold up the simulator: there is always room.
        return {path: replace(h, gate=asyncio.Semaphore(10_000)) for path, h in hosted.items()}


def _cells(handlers: Mapping[str, Handler]) -> Iterator[CellSpec]:
    for path, handler in handlers.items():
        params: dict[str, JsonValue] = {"handler": f"{handler.__module__}:{handler.__name__}"}
        yield CellSpec(path=path, cell=CellSettings(type="code"), params=params)
    for hive in ("/settle", "/classic"):
        script: dict[str, JsonValue] = {"provider": "scripted", "script": [*ROUNDS]}
        yield CellSpec(path=f"{hive}/planner", cell=CellSettings(type="llm"), params=script)
        tables: dict[str, JsonValue] = {"schema": {**TABLES}}
        yield CellSpec(path=f"{hive}/memory", cell=CellSettings(type="store"), params=tables)
    notes: dict[str, JsonValue] = {"schema": {**NOTES}}
    yield CellSpec(path="/notes/memory", cell=CellSettings(type="store"), params=notes)
    yield CellSpec(path="/sink", cell=CellSettings(type="sink"))


def _edge(source: str, target: str, condition: str | None = None, **context: str) -> EdgeSpec:
    modifier = ModifierSpec(set_context=context) if context else None
    return EdgeSpec(source=source, target=target, condition=condition, modifier=modifier)


def _loop(hive: str) -> Iterator[EdgeSpec]:
    def edge(source: str, target: str, condition: str | None = None, **context: str) -> EdgeSpec:
        return _edge(f"{hive}/{source}", f"{hive}/{target}", condition, **context)

    def on(route: str) -> str:
        return f"has(hop.route) && hop.route == '{route}'"

    asked: dict[str, Any] = {"turn_id": "hop.turn_id", "question": "hop.question"}
    began: dict[str, Any] = {**asked, "iter": "0", "firing": "''"}
    yield edge("prep", "memory", on("ustore"), store_origin="'collector'", **began)
    yield edge("prep", "planner", on("ullm"), **began)
    yield edge("planner", "dispatch", "hop.finish_reason == 'tool_calls'")
    yield _edge(f"{hive}/planner", "/sink", "hop.finish_reason == 'stop'")
    yield edge("planner", "drain", "!(hop.finish_reason in ['stop', 'tool_calls'])")
    yield edge("dispatch", "collector", "hop.route == 'c_asst' || hop.route == 'c_res'")
    for tool in ("a", "b"):
        yield edge("dispatch", tool, f"has(hop.tool_name) && hop.tool_name == '{tool}'")
        yield edge(tool, "collector")
    yield edge("collector", "memory", on("cstore"), store_origin="'collector'")
    yield edge("collector", "memory", on("cguard"), store_origin="'collector'", firing="'1'")
    again: dict[str, Any] = {"iter": "int(context.iter) + 1", "firing": "''"}
    yield edge("collector", "planner", on("fire"), **again)
    for asking in ("collector", "closer"):
        yield edge("memory", asking, f"context.store_origin == '{asking}'")
    # What the store says to the row of an error is nothing to anybody.
    yield edge("memory", "drain", "context.store_origin == 'drain'")
    yield edge("drain", "memory", on("store"), store_origin="'drain'")
    yield _edge(f"{hive}/drain", "/sink", on("answer"))
    waits = f"hop.entry == '{hive}/prep' && (hop.outputs == 0 || has(hop.error_code))"
    yield _edge(QUIET, f"{hive}/closer", waits)
    told: dict[str, Any] = {"lost": "hop.lost", "outputs": "hop.outputs"}
    yield edge("closer", "memory", on("look"), store_origin="'closer'", **told)
    mended: dict[str, Any] = {"iter": "hop.iter", "firing": "''"}
    yield edge("closer", "memory", on("cstore"), store_origin="'collector'", **mended)
    yield edge("closer", "drain", on("failed"))


def _fan() -> Iterator[EdgeSpec]:
    yield _edge(FAN, "/left")
    yield _edge(FAN, "/right")
    yield _edge("/left", "/join")
    yield _edge("/left", "/note")
    yield _edge("/note", "/notes/memory")
    yield _edge("/notes/memory", "/heard")
    yield _edge("/right", "/join")
    yield _edge("/join", "/sink")


def _turns() -> Iterator[EdgeSpec]:
    yield _ordered(TURN, "/turns/work", "hop.route == 'on'")
    # A trace keeps the order of one session, the first that it was in.
    yield _ordered(TURN, "/turns/aside", "hop.route == 'aside'", session_id="'other'")
    yield _ordered(LATE, "/turns/work", session_id="context.wish")
    yield _edge("/turns/work", "/turns/tell")
    yield _edge("/turns/tell", "/sink")
    yield _edge("/turns/aside", "/sink")


def _ordered(source: str, target: str, condition: str | None = None, **context: str) -> EdgeSpec:
    modifier = ModifierSpec(set_context=context, in_session_order=True)
    return EdgeSpec(source=source, target=target, condition=condition, modifier=modifier)
