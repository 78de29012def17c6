"""A fold in a colony names what its rounds have kept whole, and its model is told of it."""

import json

from colony.results import handles_in
from colony.testing.harness import Harness
from tests.colonies.cells import with_params
from tests.colonies.conftest import Colony
from tests.colonies.folding import Model, folding_tree, serving, summary, thread
from tests.colonies.test_tool_loop import Races


async def test_each_summary_names_what_is_kept_of_the_rounds_that_it_stands_for(
    redis_url, tmp_path
):
    model = Model(rounds=8)
    with serving(model):
        spec = folding_tree(tmp_path / "tree", model)
        long = {"handler": "workers.toolloop.fixed:fixed", "text": "42 " * 7_000}
        async with Harness(redis_url, with_params(spec, "/tool-loop/calc", long)) as harness:
            colony = Colony(harness)
            trace = await harness.ask("/capture", "How often?", ttl=400)
            assert await colony.answer(trace, Races(lambda _: True)) == "done"

            rows = await thread(colony, trace)
            hops = await harness.hops(trace)
    texts = [json.loads(row["turn"])["text"] for row in rows if row["role"] == "summary"]
    (handle,) = {name for text in texts for name in handles_in(text)}
    assert texts == [f"{summary(n)}\n\n[Kept: 21000 bytes at {handle}.]" for n in (1, 2)]
    assert all(f"more characters]\n[kept: 21000 bytes at {handle}]" in told for told in model.folds)
    assert texts[1] in str(model.asked[-1].messages[2]["content"])
    # It is of one fold, and rides no further.
    assert {h.head.target for h in hops if "compact_kept" in h.head.context} == {
        "/compact/condense",
        "/compact/emit",
    }
