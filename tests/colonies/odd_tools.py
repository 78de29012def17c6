"""Tools that do what no tool should, for an agent that has to go on."""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope

Params = Mapping[str, JsonValue]


def raises(envelope: Envelope, params: Params) -> Emission:
    """Nothing, ever."""
    raise RuntimeError("the disk is on fire")


def torn(envelope: Envelope, params: Params) -> Emission:
    """A text of bytes that are none, as Python reads them."""
    return _result(envelope, b"caf\xe9 \xff\xfe".decode(errors="surrogateescape"))


def huge(envelope: Envelope, params: Params) -> Emission:
    """More than any model is shown."""
    return _result(envelope, "y" * 3_000_000)


def silent(envelope: Envelope, params: Params) -> list[Emission]:
    """Nothing at all."""
    return []


def twice(envelope: Envelope, params: Params) -> Emission:
    """Two results for one call."""
    return _results(envelope, None, None)


def astray(envelope: Envelope, params: Params) -> Emission:
    """A result of a call that nobody made, and then its own."""
    return _results(envelope, "nobody", None)


def _result(envelope: Envelope, text: str) -> Emission:
    (call,) = envelope.body.each("tool_call")
    return Emission.of(Entry.result(call.id or "", text), route="c_res")


def _results(envelope: Envelope, *ids: str | None) -> Emission:
    """Numbered results, of the call where no other is named."""
    (call,) = envelope.body.each("tool_call")
    results = (Entry.result(i or call.id or "", f"number {n}") for n, i in enumerate(ids))
    return Emission.of(*results, route="c_res")
