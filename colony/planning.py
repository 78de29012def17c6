"""Planning: what a routing comes to in envelopes to publish, hop records and dead letters."""

from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from colony.codec import encode_body, encode_head
from colony.envelope import DeadLetter, Head
from colony.errors import EnvelopeError
from colony.keys import Keys
from colony.log import get_logger
from colony.records import excerpt, write_record
from colony.routing import Death, Fault, Leg, Routing
from colony.streams import Outgoing
from colony.topology.model import ColonySettings

# Deaths of envelopes that nothing is wrong with but that no edge takes them on.
_STRANDED: Final = frozenset({"no_route", "hive_no_route"})

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
    made.letters += [_letter(death, _own(death, body), settings) for death in deaths]
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


def _letter(death: Death, body: bytes, settings: ColonySettings) -> DeadLetter:
    head, detail = death.head, death.detail
    if death.code in _STRANDED:
        detail += _error(death.head, excerpt(body, settings.trace_bodies))
    target = head.target or head.reply_to or head.sender
    line = log.error if death.code == "ttl_expired" else log.warning
    line(death.code, message=head.id, sender=head.sender, target=target, trace=head.trace_id,
         detail=detail)  # fmt: skip
    return DeadLetter(
        code=death.code,
        detail=detail,
        sender=head.sender,
        original_target=target,
        resolved_target=head.target or head.sender,
        head=head,
        body=body,
        edges=death.edges,
    )


def _error(head: Head, shown: JsonValue) -> str:
    """The error that a cell told of and no edge takes, as far as its body is kept; else nothing.

    Nobody would look for it behind an edge that is missing.
    """
    code = head.hop.get("error_code")
    if not isinstance(code, str):
        return ""
    text = _first_text(shown)
    told = text if text.startswith(code) else ": ".join(part for part in (code, text) if part)
    return f", which is an error: {told}"


def _first_text(shown: JsonValue) -> str:
    entries = shown.get("messages") if isinstance(shown, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        text = entry.get("text") if isinstance(entry, dict) else None
        if isinstance(text, str):
            return text
    return ""
