"""Budgets: what all workers together may ask of one endpoint, kept in Redis and out of memory.

Every call is let through by one step and settled by another; one that nobody settles is over when
its lease is. Where Redis does not answer, each process goes on by itself with few calls at once.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import RedisError

from colony.errors import ServerUnavailable
from colony.host import Admission, CallOutcome, Limits
from colony.link import Link
from colony.log import Logger
from colony.lua.registry import Call, bind

# The breaker opens after so many failures in a row, and lets one call through after so long.
FAILURES: Final = 5
OPEN_MS: Final = 30_000
# What a provider may ask for; a wrong header must not keep a colony away for a day.
MAX_PAUSE_S: Final = 3_600.0
# A budget is asked before each call, and must not take longer than a call.
ANSWER_S: Final = 2.0

LOCAL_FLIGHTS: Final = 4
LOCAL_WAIT_S: Final = 0.5


class SharedBudget:
    """The budget at `key`, or this process's own while Redis does not answer."""

    def __init__(self, link: Link, key: str, limits: Limits, log: Logger) -> None:
        self._link = link
        self._key = key
        self._limits = limits
        self._log = log
        self._local = LocalBudget(limits.in_flight)
        self._away = False

    async def take(self, call: str, *, cost: int, lease_ms: int) -> Admission:
        """Whether the call may be made. A call that was let through is let through again."""
        answer = await self._run(
            bind(
                "take_allowance",
                budget=self._key,
                token=call,
                lease_ms=lease_ms,
                cost=cost,
                requests=self._limits.requests_per_minute,
                tokens=self._limits.tokens_per_minute,
                flights=self._limits.in_flight,
            )
        )
        if answer is None:
            return await self._local.take(call, cost=cost, lease_ms=lease_ms)
        if answer[0] == b"wait":
            return Admission(int(answer[1]) / 1000, answer[2].decode())
        return Admission()

    async def settle(
        self, call: str, *, cost: int | None, outcome: CallOutcome, pause_s: float | None = None
    ) -> None:
        """The call is over. Where Redis does not answer, its lease is what ends it there."""
        await self._local.settle(call, cost=cost, outcome=outcome, pause_s=pause_s)
        pause_ms = "" if pause_s is None else round(min(pause_s, MAX_PAUSE_S) * 1000)
        await self._run(
            bind(
                "settle_allowance",
                budget=self._key,
                token=call,
                cost="" if cost is None else cost,
                outcome=outcome,
                pause_ms=pause_ms,
                failures=FAILURES,
                open_ms=OPEN_MS,
            )
        )

    async def _run(self, call: Call) -> Any:
        """The answer of a script; None where Redis gives none, which is logged when it begins."""
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._link.run(call)
        except (ServerUnavailable, RedisError, TimeoutError) as error:
            if not self._away:
                reason = str(error) or type(error).__name__
                self._log.warning("budget_is_local", reason=reason)
            self._away = True
            return None
        self._away = False
        return answer


class LocalBudget:
    """A budget of one process: a few calls at once, and none while the endpoint wants none."""

    def __init__(self, in_flight: int = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = min(in_flight or LOCAL_FLIGHTS, LOCAL_FLIGHTS)
        self._clock = clock
        self._ends: dict[str, float] = {}
        self._paused_until = 0.0

    async def take(self, call: str, *, cost: int, lease_ms: int) -> Admission:
        """Whether the call may be made. A call that was let through is let through again."""
        now = self._clock()
        self._ends = {name: ends for name, ends in self._ends.items() if ends > now}
        if call in self._ends:
            return Admission()
        if self._paused_until > now:
            return Admission(self._paused_until - now, "cooldown")
        if len(self._ends) >= self._most:
            return Admission(LOCAL_WAIT_S, "in_flight")
        self._ends[call] = now + lease_ms / 1000
        return Admission()

    async def settle(
        self, call: str, *, cost: int | None, outcome: CallOutcome, pause_s: float | None = None
    ) -> None:
        """The call is over, wherever it was let through."""
        self._ends.pop(call, None)
        if outcome == "limited":
            pause = min(pause_s if pause_s is not None else 1.0, MAX_PAUSE_S)
            self._paused_until = max(self._paused_until, self._clock() + pause)
