"""Planning: what a routing comes to in envelopes to publish, hop records and dead letters."""

from dataclasses import dataclass, field

from pydantic import JsonValue

from colony.codec import encode_body, encode_head
from colony.envelope import DeadLetter
from colony.errors import EnvelopeError
from colony.keys import Keys
from colony.log import get_logger
from colony.records import excerpt, write_record
from colony.routing import Death, Fault, Leg, Routing
from colony.streams import Outgoing
from colony.topology.model import ColonySettings

log = get_logger("colony.routing")


@dataclass(slots=True)
class Plan:
    """What a routing comes to. `records` has one hop record for each leg, in order."""

    published: list[Outgoing] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


def plan(routing: Routing, body: bytes, keys: Keys, settings: ColonySettings) -> Plan:
    """The plan of a routing of an envelope with this body; its deaths and faults are logged."""
    made = Plan()
    shown = excerpt(body, settings.trace_bodies)
    made.records += [_record(leg, shown, settings) for leg in routing.transits]
    deaths = [*routing.deaths]
    for leg in routing.arrivals:
        try:
            head = encode_head(leg.head)
        except EnvelopeError as error:
            deaths.append(Death(error.code, str(error), leg.head, leg.body))
            continue
        made.published.append(Outgoing(keys.cell(leg.head.target or ""), head, _own(leg, body)))
        made.records.append(_record(leg, shown, settings))
    made.letters += [_letter(death, _own(death, body)) for death in deaths]
    for fault in routing.faults:
        _report(fault)
    return made


def _record(leg: Leg, shown: JsonValue, settings: ColonySettings) -> bytes:
    if leg.body is not None:
        shown = excerpt(encode_body(leg.body), settings.trace_bodies)
    return write_record(leg, shown)


def _own(outcome: Leg | Death, body: bytes) -> bytes:
    """The body of a leg or a death; most have that of the envelope that was routed."""
    return body if outcome.body is None else encode_body(outcome.body)


def _report(fault: Fault) -> None:
    # Optional keys are read unguarded all the time: a missing one is nothing to wake anybody for.
    line = log.debug if fault.missing else log.warning
    edge = fault.edge.spec
    line("edge_passed_over", source=edge.source, target=edge.target, condition=edge.condition,
         message=fault.head.id, trace=fault.head.trace_id, detail=fault.detail)  # fmt: skip


def _letter(death: Death, body: bytes) -> DeadLetter:
    head = death.head
    target = head.target or head.reply_to or head.sender
    line = log.error if death.code == "ttl_expired" else log.warning
    line(death.code, message=head.id, sender=head.sender, target=target, trace=head.trace_id,
         detail=death.detail)  # fmt: skip
    return DeadLetter(
        code=death.code,
        detail=death.detail,
        sender=head.sender,
        original_target=target,
        resolved_target=head.target or head.sender,
        head=head,
        body=body,
        edges=death.edges,
    )
