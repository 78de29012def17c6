"""Faults: named points of a process at which a test may crash, freeze, delay or cut it.

`before_` and `after_` a script, named like it, are points; so are `after_read` and `after_handle`
of a consumer and `after_quiet_read` of a keeper. Nobody waits at a point that is not armed: callers
look at `armed` first.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from colony.errors import ConfigError, ServerUnavailable
from colony.log import get_logger
from colony.lua.registry import scripts

VARIABLE: Final = "COLONY_FAULTS"

_FAULT = re.compile(r"(\w+)=(crash|stop|term|drop|delay:([0-9.]+))(?:@([1-9][0-9]*))?")
_SIGNALS: Final[Mapping[str, signal.Signals]] = {
    "crash": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "term": signal.SIGTERM,
}

log = get_logger("colony.faults")


@dataclass(slots=True)
class Fault:
    """What happens once at a point, when it is passed for the `left`-th time from now on."""

    action: str
    seconds: float
    left: int


armed: dict[str, Fault] = {}
"""The faults still to come, by point. Empty but in tests."""


def arm(text: str) -> None:
    """Arm the faults of `text` and disarm all others.

    `text` is a comma-separated list of `POINT=ACTION@N`: at the N-th passage, the first where none
    is given, the process is killed (`crash`), frozen (`stop`) or told to end (`term`); or what was
    asked of the server there is lost (`drop`: unsent before a script, unanswered after one); or it
    waits (`delay:SECONDS`). Raises ConfigError where there is no such point or action.
    """
    armed.clear()
    for part in filter(None, text.split(",")):
        match = _FAULT.fullmatch(part.strip())
        if match is None or match[1] not in points():
            raise ConfigError(detail=f"{VARIABLE}: {part.strip()!r} is no fault")
        action, _, seconds = match[2].partition(":")
        armed[match[1]] = Fault(action, float(seconds or 0), int(match[4] or 1))
    if armed:
        log.warning("faults_armed", points=sorted(armed))


def points() -> frozenset[str]:
    """Every point there is."""
    around = (f"{when}_{name}" for name in scripts() for when in ("before", "after"))
    return frozenset(("after_read", "after_handle", "after_quiet_read", *around))


async def reach(point: str) -> None:
    """Pass `point`; where its fault is due, that happens now."""
    fault = armed.get(point)
    if fault is None:
        return
    fault.left -= 1
    if fault.left > 0:
        return
    del armed[point]
    log.warning("fault", point=point, action=fault.action)
    if fault.action == "delay":
        await asyncio.sleep(fault.seconds)
    elif fault.action == "drop":
        raise ServerUnavailable(detail=f"a fault at {point}")
    else:
        os.kill(os.getpid(), _SIGNALS[fault.action])
