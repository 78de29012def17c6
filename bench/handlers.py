"""Handlers of the benchmark trees: they do nothing, so that what is measured is colony."""

import asyncio
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope

# Names the file in which calls that change something are written down.
JOURNAL: Final = "BENCH_JOURNAL"


async def pass_on(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """The same body again."""
    return Emission(body=envelope.body)


async def dawdle(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """The same body again, at some time within 50 ms: what came later may be passed on earlier."""
    await asyncio.sleep(random.uniform(0, 0.05))
    return Emission(body=envelope.body)


async def tool(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A result for each call."""
    calls = envelope.body.each("tool_call")
    return [Emission.of(Entry.result(call.id or "", "42"), route="c_res") for call in calls]


async def restless_tool(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A result for each call, at some time within 20 ms, once, twice or three times."""
    await asyncio.sleep(random.uniform(0, 0.02))
    return [result for _ in range(random.randint(1, 3)) for result in await tool(envelope, params)]


def change(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A result for each call, once it is in the journal that the environment names."""
    calls = [*envelope.body.each("tool_call")]
    # Short lines that are appended at once are whole, whoever else appends.
    with Path(os.environ[JOURNAL]).open("a") as journal:
        journal.write("".join(f"{envelope.trace_id} {call.id}\n" for call in calls))
    return [Emission.of(Entry.result(call.id or "", "42"), route="c_res") for call in calls]
