"""Routing: where an envelope goes, as a pure function of its head and the topology.

Every matching edge fires. A hive is passed through in memory, one ttl for each leg, and each leg
is still recorded. What cannot go anywhere comes back as a death (meclaw, routing errors).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import Head, Headers, derived_id
from colony.errors import ExpressionError
from colony.topology.expressions import Verdict
from colony.topology.model import Edge, Modifier, Topology

COLONY: Final = "/colony"
MAX_TRANSITS: Final = 1000

# Deaths that are answered to whoever the dead envelope names in `reply_to`.
_ANSWERED: Final = frozenset({"unresolved_path"})


@dataclass(frozen=True, slots=True)
class Leg:
    """One routing decision that led somewhere: a hop for the trace's log.

    `body` is None where the routed envelope keeps its own; colony's replies bring theirs.
    """

    head: Head
    edge: Edge | None
    body: Body | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """One routing decision that led nowhere. `head` is the envelope with the ttl it died with."""

    code: str
    detail: str
    head: Head
    edges: tuple[Mapping[str, JsonValue], ...] = ()


@dataclass(slots=True)
class Routing:
    """What came of routing one envelope: `arrivals` at cells, `transits` of hives, `deaths`."""

    arrivals: list[Leg] = field(default_factory=list)
    transits: list[Leg] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Match:
    """An edge that takes an envelope, with the headers it takes on."""

    edge: Edge
    context: Headers
    hop: Headers


def route(head: Head, topology: Topology) -> Routing:
    """Where the envelope goes: to its target, or, having none, along the edges of its sender."""
    routing = Routing()
    ahead = deque([Leg(head, None)])
    if head.target is None:
        matches, evaluated = match(head, topology.edges_from(head.sender))
        ahead = deque(_follow(head, found, topology) for found in matches)
        if not matches:
            detail = f"no edge out of {head.sender} takes this emission"
            routing.deaths.append(Death("no_route", detail, head, evaluated))
    while ahead:
        ahead.extend(_place(ahead.popleft(), topology, routing))
    return routing


def match(
    head: Head, edges: tuple[Edge, ...]
) -> tuple[list[Match], tuple[Mapping[str, JsonValue], ...]]:
    """The edges that take an envelope with these headers, and how each edge was evaluated."""
    matches: list[Match] = []
    evaluated: list[Mapping[str, JsonValue]] = []
    for edge in edges:
        verdict = edge.condition.condition(head.context, head.hop) if edge.condition else "always"
        if verdict in (Verdict.TRUE, "always"):
            try:
                matches.append(Match(edge, *_modify(edge.modifier, head)))
            except ExpressionError as error:
                verdict = f"modifier: {error}"
        evaluated.append(
            {"to": edge.spec.target, "condition": edge.spec.condition, "verdict": str(verdict)}
        )
    return matches, tuple(evaluated)


def answer(dead: Head, code: str, *, ttl: int, suffix: str) -> Leg | None:
    """Colony's reply to a dead envelope, to go to its `reply_to`; None where it names nobody.

    A reply names nobody itself, so that none is ever answered.
    """
    if dead.reply_to is None:
        return None
    text = f"A message to {dead.target or dead.sender} could not be delivered: {code}."
    head = dead.model_copy(
        update={
            "id": derived_id(dead.id, suffix),
            "parent_message_id": dead.id,
            "sender": COLONY,
            "target": dead.reply_to,
            "reply_to": None,
            "ttl": ttl,
            "hop": {
                "finish_reason": "error",
                "error_code": code,
                "dead_target": dead.target or dead.sender,
                "dead_message_id": dead.id,
            },
        }
    )
    return Leg(head, None, Body.of(Entry.say("assistant", text)))


def _modify(modifier: Modifier | None, head: Head) -> tuple[Headers, Headers]:
    # Every expression reads the headers that came in; deleting a key beats setting it.
    if modifier is None:
        return head.context, head.hop
    context, hop = dict(head.context), dict(head.hop)
    for key, expression in modifier.set_context.items():
        context[key] = expression.value(head.context, head.hop)
    for key, expression in modifier.set_hop.items():
        hop[key] = expression.value(head.context, head.hop)
    for key in modifier.delete_context:
        context.pop(key, None)
    for key in modifier.delete_hop:
        hop.pop(key, None)
    return context, hop


def _follow(head: Head, found: Match, topology: Topology) -> Leg:
    ttl = head.ttl
    if found.edge.modifier is not None and found.edge.modifier.restore_ttl:
        ttl = max(ttl, topology.settings.message_default_ttl)
    follow_up = head.model_copy(
        update={
            "id": derived_id(head.id, found.edge.digest),
            "target": found.edge.spec.target,
            "ttl": ttl,
            "context": found.context,
            "hop": found.hop,
        }
    )
    return Leg(follow_up, found.edge)


def _place(leg: Leg, topology: Topology, routing: Routing) -> list[Leg]:
    """Spend one ttl on a leg, note where it ends, and return the legs that go on from there."""
    head = leg.head
    if head.ttl == 0:
        return _die(
            "ttl_expired", "the budget of message_default_ttl is spent", leg, topology, routing
        )
    code = _refusal(head.target or "", topology)
    if code is not None:
        return _die(code, f"nothing takes envelopes at {head.target}", leg, topology, routing)
    arrived = Leg(head.model_copy(update={"ttl": head.ttl - 1}), leg.edge, leg.body)
    if head.target in topology.cells:
        routing.arrivals.append(arrived)
        return []
    routing.transits.append(arrived)
    if len(routing.transits) > MAX_TRANSITS:
        detail = f"one envelope may pass {MAX_TRANSITS} hives at once"
        return _die("transit_limit", detail, arrived, topology, routing)
    return _transit(arrived, topology, routing)


def _transit(leg: Leg, topology: Topology, routing: Routing) -> list[Leg]:
    hive = leg.head.target or ""
    matches, evaluated = match(leg.head, topology.edges_from(hive))
    if not matches:
        detail = f"no edge out of the hive {hive} takes this envelope"
        routing.deaths.append(Death("hive_no_route", detail, leg.head, evaluated))
    through = leg.head.model_copy(update={"parent_message_id": leg.head.id, "sender": hive})
    onward = (_follow(through, found, topology) for found in matches)
    return [Leg(step.head, step.edge, leg.body) for step in onward]


def _refusal(target: str, topology: Topology) -> str | None:
    if target == COLONY:
        return "colony_endpoint_invalid"
    if target.startswith(COLONY + "/"):
        return "colony_endpoint_unimplemented"
    if target in topology.hives or target in topology.active:
        return None
    return "cell_inactive" if target in topology.cells else "unresolved_path"


def _die(code: str, detail: str, leg: Leg, topology: Topology, routing: Routing) -> list[Leg]:
    """Note the death of a leg, and return colony's reply to it where there is one."""
    head = leg.head
    routing.deaths.append(Death(code, detail, head))
    reply = None
    if code in _ANSWERED:
        reply = answer(head, code, ttl=head.ttl - 1, suffix="reply")
    elif code == "ttl_expired" and topology.settings.ttl_notice:
        reply = answer(head, code, ttl=topology.settings.message_default_ttl, suffix="notice")
    return [reply] if reply is not None else []
