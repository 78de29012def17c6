"""Admission: the place of a call in the budget of its endpoint, waited for and given back."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from colony.host import Admission, Budget, CallOutcome
from workers.llm.provider import Answer, Failure, Reply, Request

# Those who wait for the same moment do not ask again in the same moment.
JITTER_S = 0.5

BYTES_PER_TOKEN = 4

_REASONS = {
    "breaker": "it failed again and again",
    "cooldown": "it asked to be left alone",
}

# The kind of a timeout that is ours: of the time of the question hardly any was left for the call.
OUT_OF_TIME = "out_of_time"


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance; `draw` gives numbers from 0 up to 1."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Patience:
    """Until when admission is waited for: `until` for a limit, `until_broken` for a broken
    endpoint."""

    until: float
    until_broken: float


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a budget is told of a call that is over."""

    cost: int | None = None
    outcome: CallOutcome = "neutral"
    pause_s: float | None = None


class Unlimited:
    """The budget of an endpoint that is none: a model of this process."""

    async def take(self, call: str, *, cost: int, lease_ms: int) -> Admission:
        """Every call may be made."""
        return Admission()

    async def settle(
        self, call: str, *, cost: int | None, outcome: CallOutcome, pause_s: float | None = None
    ) -> None:
        """Nothing is kept."""


# Told why a call is not made now, and for how many seconds.
Waiting = Callable[[Failure, float], None]


def unnoticed(failure: Failure, wait_s: float) -> None:
    """Nobody is told of a call that waits."""


async def admitted(
    budget: Budget,
    call: str,
    *,
    cost: int,
    lease_ms: int,
    patience: Patience,
    clock: Clock,
    waiting: Waiting = unnoticed,
) -> Failure | None:
    """Returns when the call may be made, or at once with the failure that it cannot be in time.

    `waiting` is told once of each trouble of the endpoint, and not of the usual limits.
    """
    told = set[str]()
    while True:
        admission = await budget.take(call, cost=cost, lease_ms=lease_ms)
        if admission.granted:
            return None
        broken = admission.why == "breaker"
        until = patience.until_broken if broken else patience.until
        if clock.now() + admission.wait_s >= until:
            return _refused(admission)
        if admission.why in _REASONS and admission.why not in told:
            told.add(admission.why)
            waiting(_refused(admission), admission.wait_s)
        await clock.sleep(admission.wait_s + clock.draw() * JITTER_S)


def estimated(request: Request) -> int:
    """The tokens that a call may cost, as providers reckon before it: all of its answer counts."""
    said = sum(len((entry.text or "").encode(errors="replace")) for entry in request.entries)
    told = len((request.system or "").encode(errors="replace"))
    tools = sum(len(json.dumps(tool.definition)) for tool in request.tools)
    return (said + told + tools) // BYTES_PER_TOKEN + (request.generation.max_tokens or 0)


def settlement(reply: Reply) -> Settlement:
    """What the budget is told of a reply. A refusal by us or for its number cost nothing."""
    if isinstance(reply, Answer):
        counts = (reply.tokens_prompt, reply.tokens_completion)
        known = [count for count in counts if count is not None]
        return Settlement(sum(known) if len(known) == len(counts) else None, "answered")
    if reply.source == "request":
        return Settlement(0)
    if reply.code == "rate_limited":
        return Settlement(0, "limited", reply.retry_after_s)
    if reply.disposition != "retryable" or reply.kind == OUT_OF_TIME:
        return Settlement()
    if reply.retry_after_s is not None:
        return Settlement(None, "limited", reply.retry_after_s)
    # An endpoint that answers, if with nothing to use, is not broken.
    broken = reply.code in ("timeout", "provider_error")
    return Settlement(None, "failed" if broken else "neutral")


def _refused(admission: Admission) -> Failure:
    broken = admission.why == "breaker"
    why = _REASONS.get(admission.why or "", f"the limit on {admission.why} is reached")
    return Failure(
        "provider_error" if broken else "rate_limited",
        f"the provider is not asked for another {admission.wait_s:.1f} s: {why}",
        kind=admission.why,
        disposition="retryable",
        progress="precommit",
        retry_after_s=admission.wait_s,
    )
