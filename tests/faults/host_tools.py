"""Tools of a tree that runs on many hosts: they tell where they ran, and wait where a test says so.

Of the environment, HOST names the host and HOLD a folder: while it has a file of that name, calls
wait there, each with a file of its own.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope

POLL_S = 0.01


async def tool(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A result for each call: the host that gave it."""
    host, hold = os.environ["HOST"], Path(os.environ["HOLD"])
    if (hold / host).exists():
        mark = hold / f"{host}-{envelope.id}"
        mark.touch()
        try:
            while (hold / host).exists():  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        finally:
            mark.unlink()
    calls = envelope.body.each("tool_call")
    return [Emission.of(Entry.result(call.id or "", host), route="c_res") for call in calls]
