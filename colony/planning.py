"""Planning: what a routing comes to in envelopes to publish, hop records and dead letters."""

from dataclasses import dataclass, field

from colony.codec import encode_body, encode_head
from colony.envelope import DeadLetter
from colony.errors import EnvelopeError
from colony.keys import Keys
from colony.log import get_logger
from colony.records import excerpt, write_record
from colony.routing import Death, Routing
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
    """The plan of a routing of an envelope with this body."""
    made = Plan()
    shown = excerpt(body, settings.trace_bodies)
    made.records += [write_record(leg, shown) for leg in routing.transits]
    for leg in routing.arrivals:
        own = body if leg.body is None else encode_body(leg.body)
        try:
            outgoing = Outgoing(keys.cell(leg.head.target or ""), encode_head(leg.head), own)
        except EnvelopeError as error:
            made.letters.append(_letter(Death(error.code, str(error), leg.head), own))
            continue
        made.published.append(outgoing)
        record = shown if leg.body is None else excerpt(own, settings.trace_bodies)
        made.records.append(write_record(leg, record))
    made.letters += [_letter(death, body) for death in routing.deaths]
    return made


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
