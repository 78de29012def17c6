"""Fixed: a tool that always says the same, for trying a loop out."""

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from workers.toolloop.params import HandlerParams


class Params(HandlerParams):
    """What it says."""

    text: str


def fixed(envelope: Envelope, own: Params) -> Emission | None:
    """The same text as the result of each call."""
    results = [Entry.result(call.id or "", own.text) for call in envelope.body.each("tool_call")]
    return Emission(hop={"route": "c_res"}, body=Body.of(*results)) if results else None
