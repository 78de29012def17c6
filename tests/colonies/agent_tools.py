"""The tools of the agent that is tried here, and what stands at its seams."""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope

Params = Mapping[str, JsonValue]


def look_(envelope: Envelope, params: Params) -> Emission:
    """What it was called with, and some more."""
    (call,) = envelope.body.each("tool_call")
    text = f"saw {call.text} {'.' * 300}"
    return Emission.of(Entry.result(call.id or "", text), route="c_res")


def change_(envelope: Envelope, params: Params) -> Emission:
    """That something was changed."""
    (call,) = envelope.body.each("tool_call")
    return Emission.of(Entry.result(call.id or "", "changed"), route="c_res")


def break_(envelope: Envelope, params: Params) -> Emission:
    """An error."""
    (call,) = envelope.body.each("tool_call")
    return Emission.of(Entry.result(call.id or "", "broken", is_error=True), route="c_res")


def refuse(envelope: Envelope, params: Params) -> Emission:
    """No to whatever comes."""
    return Emission.say("not this", error_code="refused")


def loudly(envelope: Envelope, params: Params) -> Emission:
    """What comes, in capitals."""
    loud = [
        entry.model_copy(update={"text": (entry.text or "").upper()})
        for entry in envelope.body.entries
    ]
    return Emission.of(*loud, **envelope.hop)
