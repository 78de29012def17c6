"""The tools of the agent that is tried here, and what stands at its seams."""

import json
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


def fails(envelope: Envelope, params: Params) -> Emission:
    """Nothing, ever."""
    raise RuntimeError("broken")


def twice(envelope: Envelope, params: Params) -> list[Emission]:
    """What comes, two times."""
    return [Emission.of(*envelope.body.entries, **envelope.hop)] * 2


def elsewhere(envelope: Envelope, params: Params) -> Emission:
    """The calls that come, of what is elsewhere."""
    moved = []
    for entry in envelope.body.each("tool_call"):
        function = json.loads(entry.text or "")
        path = json.loads(function["arguments"])["path"]
        function["arguments"] = json.dumps({"path": f"/else/{path}"})
        moved.append(entry.model_copy(update={"text": json.dumps(function)}))
    return Emission.of(*moved, **envelope.hop)
