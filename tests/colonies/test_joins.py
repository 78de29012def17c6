"""The two joins against each other: any schedule, the same thread rows and the same model requests.

`COLONY_SCHEDULES` says how many random schedules are played; a few by default.
"""

import json
import os

import pytest

from colony.testing.harness import at_random
from colony.testing.model_server import ModelServer
from colony.testing.redis_server import RedisServer

SCHEDULES = int(os.environ.get("COLONY_SCHEDULES", "3"))
TREES = ("research", "research-settle")

FETCH = {"id": "f", "name": "web_fetch", "arguments": {"url": "file:///dalen-sun-valve.md"}}
SEARCH = {"id": "s", "name": "web_search", "arguments": {"query": "Fresnel lens"}}
BROKEN = {"id": "b", "name": "web_search", "arguments": "no json"}
STRANGE = {"id": "x", "name": "teleport", "arguments": {}}
MISSING = {"id": "f", "name": "web_fetch", "arguments": {"url": "file:///nothing.md"}}
NOTE = {"id": "n", "name": "remember", "arguments": {"text": "It has a black rod."}}

# Ids come again in later rounds, as some servers number them.
SCRIPT = (
    {"text": "Let me look.", "tool_calls": [SEARCH, FETCH, BROKEN, STRANGE]},
    {"tool_calls": [NOTE]},
    {"tool_calls": [MISSING, {**FETCH, "id": ""}, SEARCH]},
    {"text": "done"},
)


def play(request):
    asked = [message for message in request.messages if message.get("tool_calls")]
    return SCRIPT[len(asked)]


async def threads(start, tree, seed):
    """The rows of the thread in their own order, and what the model was sent."""
    with ModelServer(play) as server:
        environment = {
            "COLONY_PROVIDER": "openai",
            "COLONY_MODEL": "test",
            "COLONY_BASE_URL": server.base_url,
        }
        colony = await start(tree, environment=environment)
        trace = await colony.harness.ask("/prep", "How?", context={"turn_id": "t-7"})
        answer = await colony.answer(trace, at_random(seed))
        await colony.assert_clean(trace)
        rows = await colony.rows("thread", trace_id=trace)
        fires = await colony.fires(trace)
    assert server.refused == []
    assert answer == "done"
    assert fires == len(SCRIPT) - 1
    key = [(row["iter"], row["role"], row["call_id"]) for row in rows]
    assert len(set(key)) == len(key)
    return sorted(map(json.dumps, rows)), [request.body for request in server.requests]


@pytest.mark.timeout(120 + 5 * SCHEDULES)
async def test_joins_leave_the_same_rows_and_ask_the_same_of_the_model(
    start, redis_server: RedisServer
) -> None:
    expected = await threads(start, TREES[0], 0)

    for seed in range(SCHEDULES):
        for tree in TREES:
            redis_server.flush()
            assert await threads(start, tree, seed) == expected, (tree, seed)
