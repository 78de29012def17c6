"""Attempts: how often a model is asked the same, and which of its replies counts.

A call is made again only where that may help and nobody has seen anything of the one before.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from colony.host import Budget
from workers.llm.asking.admission import (
    OUT_OF_TIME,
    Clock,
    Patience,
    Settlement,
    Waiting,
    admitted,
    estimated,
    settlement,
    unnoticed,
)
from workers.llm.asking.holding import HeldBack
from workers.llm.provider import Answer, Failure, Provider, Reply, Request

BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
# How much longer than a call may take its place in the budget is held for it.
LEASE_MARGIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Policy:
    """How many calls may be made for one question, how long one may take, and all of them; and how
    long a provider that is known to be broken is waited for."""

    attempts: int
    attempt_s: float
    total_s: float
    broken_s: float


@dataclass(frozen=True, slots=True)
class Tried:
    """How far a question has come: the calls made, whether one was made for a longer answer,
    whether anybody saw a text of the last, and the seconds that are left."""

    made: int
    enlarged: bool
    visible: bool
    left_s: float


@dataclass(frozen=True, slots=True)
class Again:
    """Another call: after how long, and whether for a longer answer."""

    wait_s: float = 0.0
    enlarged: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of a question: the reply that counts, the calls it took, and what was odd."""

    reply: Reply
    attempts: int
    warnings: Mapping[str, int]


def following(
    reply: Reply, request: Request, *, tried: Tried, policy: Policy, chance: float
) -> Again | None:
    """The call that follows a reply; None where the reply stands."""
    if tried.visible or tried.made >= policy.attempts:
        return None
    if isinstance(reply, Answer):
        cut = reply.outcome == "truncated" and not tried.enlarged
        return Again(enlarged=True) if cut and _enlargeable(request) else None
    if reply.disposition != "retryable":
        return None
    # All of the backoff is chance, or callers that failed together fail together again.
    backoff = chance * min(MAX_BACKOFF_S, BACKOFF_S * 2**tried.made)
    wait_s = (reply.retry_after_s or 0.0) + backoff
    return Again(wait_s) if wait_s < tried.left_s else None


class Attempts:
    """Asks one provider, within a budget and by a policy; `waiting` is told of every pause."""

    def __init__(
        self,
        provider: Provider,
        budget: Budget,
        policy: Policy,
        clock: Clock | None = None,
        *,
        waiting: Waiting = unnoticed,
    ) -> None:
        self._provider = provider
        self._budget = budget
        self._policy = policy
        self._clock = clock or Clock()
        self._waiting = waiting

    async def ask(self, request: Request, *, name: str, hearing: Callable[[], HeldBack]) -> Asked:
        """The reply to a question, which is the same question whenever its `name` is.

        A longer answer that fails leaves the one that was cut; a call that cannot be admitted in
        time, the failure before it. `hearing` makes the listener of one attempt.
        """
        deadline = self._clock.now() + self._policy.total_s
        made, warnings = 0, Counter[str]()
        reply: Reply | None = None
        cut: Answer | None = None
        while True:
            refusal = await self._admitted(request, name, deadline)
            if refusal is not None:
                reply = reply or refusal
                break
            heard = hearing()
            reply = await self._made(request, name, heard, deadline)
            made += 1
            warnings.update(reply.warnings)
            tried = Tried(made, cut is not None, heard.visible, deadline - self._clock.now())
            again = following(
                reply, request, tried=tried, policy=self._policy, chance=self._clock.draw()
            )
            if again is None:
                if isinstance(reply, Answer):
                    await heard.release()
                break
            if again.enlarged and isinstance(reply, Answer):
                cut, request = reply, _enlarged(request)
            if isinstance(reply, Failure):
                self._waiting(reply, again.wait_s)
            await self._clock.sleep(again.wait_s)
        unseen = isinstance(reply, Failure) and reply.progress == "precommit"
        return Asked(cut if cut is not None and unseen else reply, made, dict(warnings))

    async def abandon(self, name: str) -> None:
        """Whoever was lost while it asked this question holds no place in the budget any more."""
        await self._budget.settle(name, cost=None, outcome="neutral")

    async def _admitted(self, request: Request, name: str, deadline: float) -> Failure | None:
        broken = min(deadline, self._clock.now() + self._policy.broken_s)
        try:
            return await admitted(
                self._budget,
                name,
                cost=estimated(request),
                lease_ms=round((self._policy.attempt_s + LEASE_MARGIN_S) * 1000),
                patience=Patience(deadline, broken),
                clock=self._clock,
                waiting=self._waiting,
            )
        except asyncio.CancelledError:
            # Whoever is told to stop while it asks may have been let through already.
            await self.abandon(name)
            raise

    async def _made(self, request: Request, name: str, heard: HeldBack, deadline: float) -> Reply:
        said = Settlement()
        try:
            reply = await self._once(request, heard, deadline)
            said = settlement(reply)
        finally:
            # Also where the handle is given up: whoever waits for the place gets it at once.
            await self._budget.settle(
                name, cost=said.cost, outcome=said.outcome, pause_s=said.pause_s
            )
        return reply

    async def _once(self, request: Request, heard: HeldBack, deadline: float) -> Reply:
        left_s = deadline - self._clock.now()
        limit_s = min(self._policy.attempt_s, left_s)
        reply: Reply
        try:
            async with asyncio.timeout(limit_s):
                reply = await self._provider.complete(request, heard)
        except TimeoutError:
            detail = f"no answer within {round(limit_s * 1000)} ms"
            # An endpoint is not to blame for what it had no time to do.
            kind = OUT_OF_TIME if left_s < self._policy.attempt_s / 2 else "timeout"
            reply = Failure("timeout", detail, kind=kind, disposition="retryable")
        if isinstance(reply, Failure):
            # What was seen is known here, whatever the provider had told us.
            return replace(reply, progress="visible" if heard.visible else "precommit")
        return reply


def _enlargeable(request: Request) -> bool:
    generation = request.generation
    written = {"max_tokens", "max_completion_tokens"} & set(generation.provider_extra)
    return generation.max_tokens is not None and not written


def _enlarged(request: Request) -> Request:
    most = request.generation.max_tokens
    assert most is not None, "only what has a limit is enlarged"
    changed = request.generation.model_copy(update={"max_tokens": 2 * most})
    return replace(request, generation=changed)
