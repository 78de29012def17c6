"""The tools of the agent that is put under faults. Each says in a journal when it begins."""

import asyncio
import json
import os
from collections.abc import Mapping

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.link import Link

# So long that somebody can come in between.
WORK_S = 0.15

Params = Mapping[str, JsonValue]

_links: dict[asyncio.AbstractEventLoop, Link] = {}


async def look(envelope: Envelope, params: Params) -> Emission:
    """What it was called with, and some more."""
    (call,) = envelope.body.each("tool_call")
    await _say("look", envelope)
    return Emission.of(Entry.result(call.id or "", f"saw {'.' * 300}"), route="c_res")


async def change(envelope: Envelope, params: Params) -> Emission:
    """That something was changed, after a while."""
    (call,) = envelope.body.each("tool_call")
    await _say("change", envelope)
    await asyncio.sleep(WORK_S)
    return Emission.of(Entry.result(call.id or "", "changed"), route="c_res")


async def _say(tool: str, envelope: Envelope) -> None:
    (call,) = envelope.body.each("tool_call")
    told = {"tool": tool, "run": envelope.trace_id, "call": call.id}
    loop = asyncio.get_running_loop()
    link = _links.setdefault(loop, Link(os.environ["COLONY_REDIS_URL"]))
    await link.command("RPUSH", os.environ["FAULTS_JOURNAL"], json.dumps(told))
