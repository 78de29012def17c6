"""Followed: a text that a model gives comes to whoever follows the trace, while it is given."""

import asyncio
from typing import Any

from colony.access import Access
from colony.live import LiveEvent
from colony.records import HopRecord
from colony.testing.claims import eventually
from colony.testing.harness import Harness
from colony.testing.model_server import ModelServer
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec

PATIENCE_S = 30


def tree(**params: Any) -> TopologySpec:
    llm = CellSpec(path="/llm", cell=CellSettings(type="llm"), params=params)
    out = CellSpec(path="/out", cell=CellSettings(type="sink"))
    return TopologySpec(cells=(llm, out), edges=(EdgeSpec(source="/llm", target="/out"),))


async def test_a_text_is_followed_before_the_hop_that_has_it_whole(redis_url: str) -> None:
    text = "one two three four"
    with ModelServer([{"text": text, "pause_s": 0.1}]) as server:
        spec = tree(provider="openai", model="m", base_url=server.base_url, stream=True)
        async with Harness(redis_url, spec) as colony, Access(redis_url, "stepped") as access:
            trace_id = await colony.ask("/llm", "?")
            seen: list[HopRecord | LiveEvent] = []
            following = asyncio.create_task(_follow(access, trace_id, seen))
            await _listened(access)

            await colony.finish()
            await asyncio.wait_for(following, PATIENCE_S)

    deltas = [item for item in seen if isinstance(item, LiveEvent)]
    pieces = [str(delta.facts["text"]) for delta in deltas]
    assert "".join(pieces) == text
    assert len(pieces) > 1
    assert [delta.facts["offset"] for delta in deltas] == [
        len("".join(pieces[:n])) for n in range(len(pieces))
    ]
    assert {delta.cell for delta in deltas} == {"/llm"}
    assert isinstance(seen[-1], HopRecord)
    assert seen[-1].head.target == "/out"


async def _follow(access: Access, trace_id: str, seen: list[HopRecord | LiveEvent]) -> None:
    async for item in access.feed.watch_trace(trace_id):
        seen.append(item)


async def _listened(access: Access) -> None:
    async def count() -> int:
        _, count = await access.link.command("PUBSUB", "NUMSUB", access.keys.live())
        return int(count)

    await eventually(count, "somebody listens")
