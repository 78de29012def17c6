"""Rounds whose results are more together than one message holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from colony.codec import MAX_BODY_BYTES
from colony.results import MAX_RESULT_BYTES, kept_at
from tests.colonies.conftest import Rows, Start
from tests.workers.web_server import Reply, serving

CALLS = 16
TREES = pytest.mark.parametrize("tree", ["research", "research-settle"])


def round_of(tool: str, number: int, **arguments: str) -> dict[str, Any]:
    """An answer of the model with as many calls as may be made at once."""
    return {
        "tool_calls": [
            {"id": f"{number}-{nth}", "name": tool, "arguments": arguments} for nth in range(CALLS)
        ]
    }


def results(rows: Rows) -> list[str]:
    return [str(row["turn"]) for row in rows if row["role"] == "tool"]


@TREES
async def test_long_results_are_short_in_their_rows_and_the_question_goes_on(
    start: Start, tree: str
) -> None:
    async with serving() as web:
        text = "line\n" * (MAX_RESULT_BYTES // 5)
        web.replies["/page"] = Reply(text.encode(), headers={"Content-Type": "text/plain"})
        url = f"http://127.0.0.1:{web.port}/page"
        script = [*(round_of("web_fetch", n, url=url) for n in range(3)), {"text": "done"}]
        more = {
            "max_bytes": MAX_RESULT_BYTES,
            "allow_private_networks": True,
            "ports": [web.port],
        }
        colony = await start(tree, script=script, more={"/reader": more})

        trace_id = await colony.harness.ask("/prep", "What is in all of them?")

        assert await colony.answer(trace_id) == "done"
    rows = await colony.rows("thread", trace_id=trace_id)
    turns = [json.loads(turn)["text"] for turn in results(rows)]
    assert len(turns) == 3 * CALLS
    assert 3 * CALLS * len(text) > MAX_BODY_BYTES
    assert all(len(turn) < 33_000 and kept_at(turn).size == len(text) for turn in turns)
    await colony.assert_clean(trace_id)


@TREES
async def test_so_are_those_that_are_kept_nowhere_else(
    start: Start, tree: str, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("line\n" * (MAX_RESULT_BYTES // 5))
    script = [
        *(round_of("file", n, op="read", path="notes") for n in range(3)),
        {"text": "done"},
    ]
    more = {"base_path": str(tmp_path), "max_bytes": MAX_RESULT_BYTES}
    colony = await start(tree, script=script, more={"/file": more})

    trace_id = await colony.harness.ask("/prep", "What is in all of them?")

    assert await colony.answer(trace_id) == "done"
    turns = results(await colony.rows("thread", trace_id=trace_id))
    assert len(turns) == 3 * CALLS
    assert all("are left out" in turn for turn in turns)
    await colony.assert_clean(trace_id)


@TREES
async def test_a_thread_that_no_reply_of_the_store_can_hold_is_told_to_the_user(
    start: Start, tree: str, tmp_path: Path
) -> None:
    # A quotation mark has four bytes in the reply: it is JSON within JSON.
    (tmp_path / "notes").write_text('"' * MAX_RESULT_BYTES)
    assert CALLS * MAX_RESULT_BYTES * 4 > MAX_BODY_BYTES
    script = [round_of("file", 0, op="read", path="notes"), {"text": "done"}]
    more = {
        "/file": {"base_path": str(tmp_path), "max_bytes": MAX_RESULT_BYTES},
        "/collector": {"max_result_bytes": MAX_RESULT_BYTES},
    }
    colony = await start(tree, script=script, more=more)

    trace_id = await colony.harness.ask("/prep", "What is in it?")

    assert "more to it than I can hold" in await colony.answer(trace_id)
    kinds = [row["kind"] for row in await colony.rows("errors", trace_id=trace_id)]
    assert kinds == ["result_too_large"]
    assert (await colony.harness.trace(trace_id)).revivals == 1
    await colony.assert_clean(trace_id)
