"""Attempts: that a call which may change something is begun once, however often it is ordered."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pydantic import TypeAdapter

from colony.codec import pack, unpack
from colony.envelope import Emission
from colony.errors import OutcomeUnknown, ServerUnavailable
from colony.hosting import LiveHost

INTENT = "intent"
OUTCOME = "outcome"
# What is larger is not kept a second time: cut off before its commit, it is not known.
LARGEST_BYTES = 1024**2

_EMISSIONS = TypeAdapter(list[Emission])


async def once(
    host: LiveHost,
    attempt: str,
    handle: Callable[[], Awaitable[Sequence[Emission]]],
    *,
    confirmed: Callable[[], Awaitable[bool]] | None = None,
) -> Sequence[Emission]:
    """What `handle` gives, or what an earlier attempt gave.

    Raises OutcomeUnknown, and handles nothing, where an earlier one was begun and has left no word,
    and where it is not `confirmed` that this one will be remembered.
    """
    intent = await host.record(INTENT, attempt.encode())
    if intent != attempt.encode():
        found = await earlier(host)
        if found is None:
            raise OutcomeUnknown(path=host.spec.path)
        return found
    if confirmed is not None and not await confirmed():
        raise OutcomeUnknown(path=host.spec.path)
    emissions = await handle()
    outcome = _written(emissions, host)
    if len(outcome) <= LARGEST_BYTES:
        # Handled again for want of this word it would be done twice: the commit has it as well.
        with suppress(ServerUnavailable):
            await host.record(OUTCOME, outcome)
    return emissions


async def earlier(host: LiveHost) -> Sequence[Emission] | None:
    """What an attempt gave that was cut off before its commit; None where none came so far."""
    outcome = await host.recall(OUTCOME)
    if outcome is None:
        return None
    emissions, host.kept[:], host.shelved[:] = unpack(outcome)
    return _EMISSIONS.validate_json(emissions)


async def begun(host: LiveHost) -> bool:
    """Whether any attempt was begun."""
    return await host.recall(INTENT) is not None


def _written(emissions: Sequence[Emission], host: LiveHost) -> bytes:
    plain = [{"hop": e.hop, "body": e.body.to_json()} for e in emissions]
    return pack([TypeAdapter(object).dump_json(plain), [*host.kept], [*host.shelved]])
