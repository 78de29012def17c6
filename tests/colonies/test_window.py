"""What a model is sent of a question with many rounds, in trees as they ship."""

import json

import pytest

from colony.testing.model_server import ModelServer
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
    written = blocks(section("A window of 8,000 tokens"))
    prep, collector = (json.loads(block.text)["params"] for block in written)
    (tmp_path / "long.txt").write_text("The lamp was lit. " * 4_000)

    def answer(request):
        made = [int(c["id"]) for m in request.messages for c in m.get("tool_calls", ())]
        first = max(made, default=0) + 1
        if first > 10:
            return {"text": ANSWER}
        url = {"url": "file:///long.txt"}
        ids = map(str, range(first, first + 2))
        return {"tool_calls": [{"id": n, "name": "web_fetch", "arguments": url} for n in ids]}

    with ModelServer(answer) as server:
        environment = {**of("openai", server.base_url), "COLONY_CORPUS": str(tmp_path)}
        more = {"/prep": prep, "/collector": collector}
        colony = await start("research-settle", environment=environment, more=more)
        for number in range(8):
            asked = f"Was the lamp lit in {number}?"
            trace = await colony.harness.ask("/prep", asked, context={"session_id": "s"})
            assert await colony.answer(trace) == ANSWER
            await colony.assert_clean(trace)
    sizes = [len(request.content) for request in server.requests]

    assert server.refused == []
    assert len(sizes) == 8 * 6
    assert window // 2 < max(sizes) < window - said
