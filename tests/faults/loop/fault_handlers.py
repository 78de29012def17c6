"""Handlers of the tree that is put under faults. Each that matters says what it does to a journal.

The journal is a list beside the colony's keys, or on a server of its own, so that what was done is
known from two sides.
"""

import asyncio
import json
import os
import time
from collections.abc import Mapping

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.errors import ServerUnavailable
from colony.keys import Keys
from colony.link import Link

SLOW_S = 0.6
POLL_S = 0.05

_STEPS: tuple[dict[str, JsonValue], ...] = (
    {"operation": "insert", "row": {"note": "a"}},
    {"operation": "update", "set": {"note": "b"}},
    {"operation": "upsert", "row": {"note": "c"}},
    {"operation": "select", "columns": ["id", "note"]},
    {"operation": "newest", "columns": ["id", "note"], "limit": 2},
    {"operation": "delete"},
)

_links: dict[tuple[asyncio.AbstractEventLoop, str], Link] = {}


async def tool(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission]:
    """A result for each call, after a while where the question asks for it."""
    await _say(envelope)
    if str(envelope.context.get("question", "")).startswith("slow"):
        await asyncio.sleep(SLOW_S)
    calls = envelope.body.each("tool_call")
    return [Emission.of(Entry.result(call.id or "", "42"), route="c_res") for call in calls]


async def lull(envelope: Envelope, params: Mapping[str, JsonValue]) -> None:
    """Nothing, so that the trace comes to rest without an answer."""
    await _say(envelope)


async def wake(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """The answer of a trace that was revived."""
    await _say(envelope)
    return Emission.say("woken")


async def turn(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """An answer that waits for those to older questions."""
    await _say(envelope)
    return Emission.say("in turn")


async def linger(envelope: Envelope, params: Mapping[str, JsonValue]) -> None:
    """Nothing, once the trace has ended."""
    await _say(envelope)
    url, trace = os.environ["COLONY_REDIS_URL"], Keys(os.environ["COLONY_NAME"]).trace
    while await _answer(url, "HGET", trace(envelope.trace_id), "state") != b"ended":  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


async def ledger(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """The next operation on the trace's own row; after the last one what all of them came to."""
    await _say(envelope)
    said = str(envelope.context.get("said", ""))
    done = len(said.split())
    if envelope.hop.get("operation") is not None:
        told = envelope.hop.get("error_code", envelope.hop.get("rows_affected"))
        said = f"{said} {envelope.hop['operation']}:{told}".strip()
        done += 1
    if done == len(_STEPS):
        return Emission.say(said, route="done")
    operation = {"table": "ledger", **_STEPS[done]}
    if "row" in operation:
        operation["row"] = {"id": envelope.trace_id, **_STEPS[done]["row"]}  # type: ignore[dict-item]
    else:
        operation["where"] = {"id": envelope.trace_id}
    return Emission.of(Entry.call("l-op", operation), route="write", said=said)


async def _say(envelope: Envelope) -> None:
    told = {
        "trace": envelope.trace_id,
        "message": envelope.id,
        "by": envelope.sender,
        "at": time.time(),
    }
    url = os.environ.get("FAULTS_JOURNAL_URL", os.environ["COLONY_REDIS_URL"])
    await _answer(url, "RPUSH", os.environ["FAULTS_JOURNAL"], json.dumps(told))


async def _answer(url: str, *parts: str) -> bytes | int | None:
    """What the server answers, asked until it does.

    What a handler raises is its answer: a connection that is cut must not become one.
    """
    place = (asyncio.get_running_loop(), url)
    link = _links.setdefault(place, Link(url))
    while True:
        try:
            answer: bytes | int | None = await link.command(*parts)
            return answer
        except ServerUnavailable:
            await asyncio.sleep(POLL_S)
