"""Hooks: cells of a tree that stand at a seam of the agent, with one that is ready to be used.

Before a tool: calls whose arguments have what they must not have are refused, the others pass.
"""

from pydantic import Field, field_validator

from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.agent.patterns import checked, found_in, texts_in
from workers.toolloop.params import HandlerParams
from workers.written_arguments import json_in


class Params(HandlerParams):
    """What arguments must not have, by name; the tools whose calls are looked at, all if empty."""

    refuse: dict[str, str]
    tools: list[str] = Field(default_factory=list)

    @field_validator("refuse")
    @classmethod
    def _can_be_searched(cls, given: dict[str, str]) -> dict[str, str]:
        return dict(checked(given))


def refuse_calls(envelope: Envelope, own: Params) -> Emission:
    """The calls that pass as they came, and a result in place of each that is refused."""
    entries = [
        _looked_at(entry, own) if entry.type == "tool_call" else entry
        for entry in envelope.body.entries
    ]
    return Emission.of(*entries, **envelope.hop)


def _looked_at(entry: Entry, own: Params) -> Entry:
    function = json_in(entry.text)
    if not isinstance(function, dict):
        return Entry.result(entry.id or "", "the call cannot be read", is_error=True)
    if own.tools and function.get("name") not in own.tools:
        return entry
    arguments = function.get("arguments")
    # As its tool will read them: a text within a text hides nothing.
    read = json_in(arguments) if isinstance(arguments, str) else arguments
    found = found_in(texts_in(read), own.refuse)
    if not found:
        return entry
    return Entry.result(entry.id or "", f"its arguments have {', '.join(found)}", is_error=True)
