"""Spells: what holds for a while is told when it begins, not to every request that runs into it."""

import time
from typing import Final

OVER_S: Final = 30.0


class Spells:
    """Each is over once nothing was heard of it for `over_s`."""

    def __init__(self, *, over_s: float = OVER_S) -> None:
        self._over_s = over_s
        self._heard: dict[str, float] = {}

    def begins(self, code: str) -> bool:
        """Whether this is the first that is heard of it, in this spell."""
        now = time.monotonic()
        before, self._heard[code] = self._heard.get(code), now
        return before is None or now - before >= self._over_s
