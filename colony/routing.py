"""Routing: where an envelope goes, as a pure function of its head and the topology.

Every matching edge fires. A hive is passed through in memory, one ttl for each leg, and each leg
is still recorded. What cannot go anywhere comes back as a death (meclaw, routing errors). An edge
whose expression fails is as if it were not there, and comes back as a fault.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.codec import encode_head
from colony.envelope import Head, Headers, derived_id, session_of
from colony.errors import EnvelopeError, ExpressionError, MissingKey
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
    """One routing decision that led nowhere. `head` is the envelope with the ttl it died with.

    `body` is None where it died with the body of the routed envelope.
    """

    code: str
    detail: str
    head: Head
    body: Body | None = None
    edges: tuple[Mapping[str, JsonValue], ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """An edge that was passed over because an expression of it came to nothing.

    `missing` tells that its condition read a key that is not there, which is no reason to worry.
    """

    edge: Edge
    head: Head
    detail: str
    missing: bool


@dataclass(slots=True)
class Routing:
    """What came of routing one envelope: `arrivals` at cells, `transits` of hives, `deaths`; and
    the `faults` met on the way.

    `session` is the one whose order it keeps: all of it waits for the turn of its trace. It is
    empty where no edge that was taken asks for an order, or no session is known there.
    """

    arrivals: list[Leg] = field(default_factory=list)
    transits: list[Leg] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    session: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """An edge that takes an envelope, with the headers it takes on."""

    edge: Edge
    context: Headers
    hop: Headers


def route(head: Head, topology: Topology) -> Routing:
    """Where the envelope goes: to its target, or, having none, along the edges of its sender.

    An envelope that would pass too many hives at once goes nowhere at all: hives that multiply it
    would fill the streams before its ttl is spent.
    """
    routing = Routing()
    if head.target is not None:
        ahead = deque([Leg(head, None)])
    else:
        ahead = deque(_leave(head, None, topology, routing))
        if not ahead:
            detail = f"no edge out of {head.sender} takes this emission"
            routing.deaths.append(_stranded("no_route", detail, Leg(head, None), topology, routing))
    while ahead:
        ahead.extend(_place(ahead.popleft(), topology, routing))
        if len(routing.transits) > MAX_TRANSITS:
            detail = f"one envelope may pass {MAX_TRANSITS} hives at once"
            return Routing(deaths=[Death("transit_limit", detail, head)])
    return routing


def match(head: Head, edges: tuple[Edge, ...]) -> tuple[list[Match], list[Fault]]:
    """The edges that take an envelope with these headers, and those whose expressions failed."""
    matches: list[Match] = []
    faults: list[Fault] = []
    for edge in edges:
        verdict = _verdict(edge, head)
        if verdict is Verdict.TRUE:
            try:
                matches.append(Match(edge, *_modify(edge.modifier, head)))
            except ExpressionError as error:
                faults.append(Fault(edge, head, f"modifier: {error}", missing=False))
        elif verdict is not Verdict.FALSE:
            faults.append(_fault(edge, head))
    return matches, faults


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


def _verdict(edge: Edge, head: Head) -> Verdict:
    if edge.condition is None:
        return Verdict.TRUE
    return edge.condition.condition(head.context, head.hop)


def _fault(edge: Edge, head: Head) -> Fault:
    if edge.condition is not None:
        try:
            edge.condition.value(head.context, head.hop)
        except ExpressionError as error:
            return Fault(edge, head, str(error), missing=isinstance(error, MissingKey))
    return Fault(edge, head, "the condition is neither true nor false", missing=False)


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


def _leave(head: Head, body: Body | None, topology: Topology, routing: Routing) -> list[Leg]:
    """The legs along the edges of the sender; those passed over are noted."""
    matches, faults = match(head, topology.edges_from(head.sender))
    routing.faults += faults
    for found in matches:
        if found.edge.modifier is not None and found.edge.modifier.in_session_order:
            routing.session = routing.session or session_of(found.context)
    return [Leg(_follow(head, found, topology), found.edge, body) for found in matches]


def _follow(head: Head, found: Match, topology: Topology) -> Head:
    ttl = head.ttl
    if found.edge.modifier is not None and found.edge.modifier.restore_ttl:
        ttl = max(ttl, topology.settings.message_default_ttl)
    return head.model_copy(
        update={
            "id": derived_id(head.id, found.edge.digest),
            "target": found.edge.spec.target,
            "ttl": ttl,
            "context": found.context,
            "hop": found.hop,
        }
    )


def _place(leg: Leg, topology: Topology, routing: Routing) -> list[Leg]:
    """Spend one ttl on a leg, note where it ends, and return the legs that go on from there."""
    head = leg.head
    if head.ttl == 0:
        detail = "the budget of message_default_ttl is spent"
        return _die("ttl_expired", detail, leg, topology, routing)
    code = _refusal(head.target or "", topology)
    if code is not None:
        return _die(code, f"nothing takes envelopes at {head.target}", leg, topology, routing)
    arrived = Leg(head.model_copy(update={"ttl": head.ttl - 1}), leg.edge, leg.body)
    if head.target not in topology.cells:
        return _transit(arrived, topology, routing)
    routing.arrivals.append(arrived)
    return []


def _transit(leg: Leg, topology: Topology, routing: Routing) -> list[Leg]:
    hive = leg.head.target or ""
    try:
        # What edges add at each hive would grow without end before any of it is sent.
        encode_head(leg.head)
    except EnvelopeError as error:
        return _die(error.code, str(error), leg, topology, routing)
    routing.transits.append(leg)
    through = leg.head.model_copy(update={"parent_message_id": leg.head.id, "sender": hive})
    onward = _leave(through, leg.body, topology, routing)
    if not onward:
        detail = f"no edge out of the hive {hive} takes this envelope"
        routing.deaths.append(_stranded("hive_no_route", detail, leg, topology, routing))
    return onward


def _refusal(target: str, topology: Topology) -> str | None:
    if target == COLONY:
        return "colony_endpoint_invalid"
    if target.startswith(COLONY + "/"):
        return "colony_endpoint_unimplemented"
    if target in topology.hives or target in topology.active:
        return None
    return "cell_inactive" if target in topology.cells else "unresolved_path"


def _stranded(code: str, detail: str, leg: Leg, topology: Topology, routing: Routing) -> Death:
    """The death of a leg that no edge takes on; it tells what became of each edge."""
    own = (fault for fault in routing.faults if fault.head.id == leg.head.id)
    reasons = {fault.edge.digest: fault.detail for fault in own}
    edges = tuple(
        {
            "to": edge.spec.target,
            "condition": edge.spec.condition,
            "verdict": reasons.get(edge.digest, "false"),
        }
        for edge in topology.edges_from(leg.head.target or leg.head.sender)
    )
    return Death(code, detail, leg.head, leg.body, edges)


def _die(code: str, detail: str, leg: Leg, topology: Topology, routing: Routing) -> list[Leg]:
    """Note the death of a leg, and return colony's reply to it where there is one."""
    head = leg.head
    routing.deaths.append(Death(code, detail, head, leg.body))
    reply = None
    if code in _ANSWERED:
        reply = answer(head, code, ttl=head.ttl - 1, suffix="reply")
    elif code == "ttl_expired" and topology.settings.ttl_notice:
        reply = answer(head, code, ttl=topology.settings.message_default_ttl, suffix="notice")
    return [reply] if reply is not None else []
