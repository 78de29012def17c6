"""What a model is sent of a question with many rounds, in trees as they ship."""

import json

import pytest

from colony.testing.harness import Harness
from colony.testing.model_server import ModelServer
from tests.colonies.cells import with_params
from tests.colonies.conftest import Colony
from tests.colonies.folding import laid_into
from tests.colonies.test_thoughts import of
from tests.pages import blocks, section

TREES = pytest.mark.parametrize("tree", ["research", "research-settle"])
ROUNDS = 7
ANSWER = "It was lit. " * 200


def calling(number):
    """An answer with two calls, one of which is of a tool that nobody has."""
    calls = [
        {"id": f"s-{number}", "name": "web_search", "arguments": {"query": f"lamp {number}"}},
        {"id": f"n-{number}", "name": "nobody", "arguments": {}},
    ]
    return {"text": f"round {number}", "tool_calls": calls}


SCRIPT = [*(calling(number) for number in range(ROUNDS)), {"text": "done"}]


async def asked(start, tree, caps):
    with ModelServer(SCRIPT) as server:
        environment = of("openai", server.base_url)
        colony = await start(tree, environment=environment, more={"/collector": caps})
        trace = await colony.harness.ask("/prep", "Which lamps?")
        assert await colony.answer(trace) == "done"
    assert server.refused == []
    await colony.assert_clean(trace)
    return server.requests, await colony.rows("thread", trace_id=trace)


@TREES
async def test_rounds_that_left_are_told_of_and_stay_in_their_rows(start, tree):
    requests, rows = await asked(start, tree, {"max_rounds": 4})
    whole, all_rows = await asked(start, tree, {"max_rounds": ROUNDS})

    shown = [[m for m in request.messages if "tool_calls" in m] for request in requests]
    assert [len(calls) for calls in shown] == [0, 1, 2, 3, 4, 3, 4, 3]
    first = [calls[0]["content"] for calls in shown[1:]]
    assert first[:4] == ["round 0"] * 4
    assert first[4].startswith("[2 earlier rounds of this question, with 4 calls and ")
    assert first[4].endswith(" bytes, left this view.]\n\nround 2")
    assert first[5] == first[4]
    assert first[6].startswith("[4 earlier rounds ")
    assert len([m for m in whole[-1].messages if "tool_calls" in m]) == ROUNDS
    # The second question finds the rows of the first in the same store.
    assert all_rows == [*rows, *rows]


async def test_the_caps_of_the_page_keep_every_request_to_its_window(start, tmp_path):
    window, said = 4 * 8_000, 4 * 1_000
    (tmp_path / "long.txt").write_text("The lamp was lit. " * 4_000)

    with ModelServer(reading(calls=2, rounds=5)) as server:
        environment = {**of("openai", server.base_url), "COLONY_CORPUS": str(tmp_path)}
        colony = await start("research-settle", environment=environment, more=CAPS)
        for number in range(8):
            await ask_of_the_lamp(colony, number)
    sizes = [len(request.content) for request in server.requests]

    assert server.refused == []
    assert len(sizes) == 8 * 6
    assert window // 2 < max(sizes) < window - said


@pytest.mark.parametrize("failing", [0, 3])
async def test_the_lane_of_the_page_folds_before_rounds_leave_and_within_the_window(
    redis_url, tmp_path, failing
):
    window, said = 4 * 8_000, 4 * 1_000
    (tmp_path / "long.txt").write_text("The lamp was lit. " * 4_000)
    (lane,) = [json.loads(block.text) for block in PAGE if "tree" in block.marks]
    handed = lane["main/compact/config.json"]["params"]["with"]

    with ModelServer(reading(calls=4, rounds=11, failing=failing)) as server:
        environment = {**of("openai", server.base_url), "COLONY_CORPUS": str(tmp_path)}
        folds = {"fold_base_url": server.base_url, "fold_model": "m"}
        spec = laid_into(tmp_path / "tree", "research-settle", {**handed, **folds})
        for path, added in CAPS.items():
            (params,) = [cell.params for cell in spec.cells if cell.path == path]
            spec = with_params(spec, path, {**params, **added})
        async with Harness(redis_url, spec, environment=environment) as harness:
            for number in range(4):
                await ask_of_the_lamp(Colony(harness), number)
    folded = [request for request in server.requests if "tools" not in request.body]

    assert server.refused == []
    assert len(folded) >= 4 * 4
    assert max(len(request.content) for request in server.requests) < window - said
    left = any(b"left this view" in request.content for request in server.requests)
    assert left == (failing > 0)


PAGE = blocks(section("A window of 8,000 tokens"))
CAPS = {
    "/" + block.marks["params"].partition("/")[2]: json.loads(block.text)
    for block in PAGE
    if "params" in block.marks
}


def reading(*, calls, rounds, failing=0):
    """A model that has a long document read so many times at once for so many rounds; it counts
    what it is sent at four bytes to a token. Its summaries are as long as they may be, but for the
    first of a question: so many are empty."""
    made = folds = 0

    def answer(request):
        nonlocal made, folds
        usage = {"prompt_tokens": len(request.content) // 4, "completion_tokens": 5}
        if "tools" not in request.body:
            folds += 1
            return {"text": "The lamp was lit. " * 220 * (folds > failing), "usage": usage}
        if made == rounds * calls:
            made = folds = 0
            return {"text": ANSWER, "usage": usage}
        url = {"url": "file:///long.txt"}
        ids = [str(number) for number in range(made, made + calls)]
        made += calls
        called = [{"id": n, "name": "web_fetch", "arguments": url} for n in ids]
        return {"tool_calls": called, "usage": usage}

    return answer


async def ask_of_the_lamp(colony, number):
    asked = f"Was the lamp lit in {number}?"
    trace = await colony.harness.ask("/prep", asked, context={"session_id": "s"})
    assert await colony.answer(trace) == ANSWER
    await colony.assert_clean(trace)
