"""Unknown: a call of a tool that no edge leads to is answered, so that its round completes."""

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from workers.toolloop.params import HandlerParams


def unknown(envelope: Envelope, own: HandlerParams) -> Emission | None:
    """An error result under the id of each call."""
    text = f"unknown_tool: there is no tool {envelope.hop.get('tool_name', '')!r}"
    results = [
        Entry.result(call.id or "", text, is_error=True) for call in envelope.body.each("tool_call")
    ]
    if not results:
        return None
    return Emission(hop={"route": "c_res", "error_code": "unknown_tool"}, body=Body.of(*results))
