"""Pace: how long a process holds, renews, reclaims and waits."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Pace:
    """The times of a consumer in milliseconds.

    A connection whose server owes an answer for `silence_ms` counts as lost.
    """

    claim_idle_ms: int = 60_000
    renew_ms: int = 20_000
    reclaim_ms: int = 2_000
    drain_ms: int = 25_000
    block_ms: int = 1_000
    silence_ms: int = 30_000

    @classmethod
    def of(cls, *, claim_idle_s: float, drain_s: float) -> Self:
        """The pace at which what nobody renewed for `claim_idle_s` is taken from its holder."""
        claim_idle_ms = round(claim_idle_s * 1000)
        return cls(
            claim_idle_ms=claim_idle_ms,
            renew_ms=claim_idle_ms // 3,
            # However long a claim is, what was handed back waits for nothing but this look.
            reclaim_ms=min(2_000, claim_idle_ms // 4),
            drain_ms=round(drain_s * 1000),
            # A connection that died unnoticed has to be given up while there is time to renew over
            # another; but a server that is slow, or a read that waits, is no dead connection.
            silence_ms=min(30_000, max(5_000, claim_idle_ms // 2)),
        )
