"""A document too large for a message: fetched by one worker process, read in ranges by another."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import derived_id, digest
from colony.link import Link
from colony.operations import Select
from colony.publication import Publication
from colony.results import handle_of, text_id
from colony.schema import Schema
from colony.store.tables import StoreTables
from colony.testing.claims import eventually
from colony.testing.fleet import Fleet
from colony.testing.nursery import Nursery
from colony.topology.load import load
from colony.topology.model import TopologySpec
from colony.traces import Traces
from colony.trees import shipped
from tests.colonies.conftest import Start, with_params
from tests.workers.web_server import Reply, serving
from workers.store import Store

DOCUMENT = "".join(f"{n:06d}é" for n in range(640_000))  # 5 MB
WHOLE = DOCUMENT.encode()
GUARD, SESSION = "the question", "the session"
TRACE = derived_id("guard", GUARD)
OFFSETS = (2_500_000, 2_500_007, len(WHOLE) - 16_000, 4_000_001)


def call(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"id": call_id, "name": name, "arguments": arguments}]}


def tree(port: int) -> TopologySpec:
    """The research tree, with a model that fetches a document and reads on in four rounds."""
    handle = handle_of(WHOLE, TRACE)
    script = [
        call("web_fetch", "fetch", url=f"http://127.0.0.1:{port}/document"),
        *(
            call("file", f"read-{offset}", op="read", path=handle, offset=offset)
            for offset in OFFSETS
        ),
        {"text": "done"},
    ]
    spec = load(shipped("research"), environment={}).publishable()
    spec = with_params(spec, "/planner", {"provider": "scripted", "script": script})
    return with_params(
        spec,
        "/reader",
        {"max_bytes": 32_768, "allow_private_networks": True, "ports": [port]},
    )


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


async def test_a_large_document_is_read_in_ranges_over_rounds_that_stay_small(
    redis_url: str, link: Link
) -> None:
    with Nursery() as nursery, Fleet(nursery, redis_url, "documents") as fleet:
        keys, traces = fleet.keys, Traces(link, fleet.keys)
        async with serving() as web:
            web.replies["/document"] = Reply(WHOLE, headers={"Content-Type": "text/plain"})
            spec = tree(web.port)
            await Publication(link, keys).publish(spec)
            others = [cell.path for cell in spec.cells if cell.path != "/file"]
            patterns = [word for path in others for word in ("--cells", path)]
            fleet.router()
            fleet.worker(*patterns, "--root", str(shipped("research")))
            fleet.worker("--cells", "/file")
            await traces.birth(
                "/prep",
                Body.of(Entry.say("user", "What is in the middle of it?")),
                ttl=spec.settings.message_default_ttl,
                context={"session_id": SESSION},
                guard=GUARD,
            )

            async def ended() -> bool:
                return (await traces.get(TRACE)).ended

            await eventually(ended, "the question is answered")
        assert (await traces.get(TRACE)).cause == "completed"
        kept = keys.shelved(TRACE, digest(SESSION), text_id(WHOLE))
        assert await link.command("GET", kept) == WHOLE

        rows = await thread(link, keys, spec)
        results = {row["call_id"]: row["turn"] for row in rows if row["role"] == "tool"}
        for offset in OFFSETS:
            begin = len(WHOLE[:offset].decode(errors="ignore").encode())
            shown = WHOLE[begin : begin + 15_000].decode(errors="ignore")
            assert shown in str(results[f"read-{offset}"])
        assert len(results) == 1 + len(OFFSETS)
        assert sum(len(str(row["turn"]).encode()) for row in rows) < 150_000
        # Bodies that are too large for a stream are kept as long as their trace.
        bodies = [key for key in await link.command("KEYS", "*:blob:*") if key != kept.encode()]
        assert all([await link.command("STRLEN", key) < 200_000 for key in bodies])


async def thread(link: Link, keys: Any, spec: TopologySpec) -> list[dict[str, Any]]:
    [memory] = [cell for cell in spec.cells if cell.path == "/memory"]
    params = Store.Params.model_validate(memory.params)
    tables = StoreTables(
        link,
        keys,
        path="/memory",
        schema=Schema(tables=params.tables),
        trace_id=TRACE,
        envelope_id="test",
    )
    reply = await tables.execute(Select(table="thread", columns=("role", "call_id", "turn")))
    assert reply.error_code is None, reply.detail
    return [dict(row) for row in reply.rows or ()]


@pytest.mark.parametrize("name", ["research", "research-settle"])
async def test_a_model_of_a_shipped_tree_is_told_of_a_handle_that_leads_nowhere(
    start: Start, name: str
) -> None:
    asked = call("file", "r", op="read", path=handle_of(WHOLE, TRACE))
    colony = await start(name, script=[asked, {"text": "done"}])

    trace_id = await colony.harness.ask("/prep", "What was it?")

    assert await colony.answer(trace_id) == "done"
    rows = await colony.rows("thread", trace_id=trace_id)
    [told] = [row["turn"] for row in rows if row["role"] == "tool"]
    assert "not_found: there is no text kept as blob:" in told
    await colony.assert_clean(trace_id)


@pytest.mark.parametrize("name", ["research", "research-settle", "telegram-research", "starter"])
def test_a_shipped_tree_reads_what_is_kept_and_no_folder(name: str) -> None:
    spec = load(shipped(name), environment={}).publishable()

    [cell] = [cell for cell in spec.cells if cell.path == "/file"]
    assert "base_path" not in cell.params
    edges = {(edge.source, edge.target): edge.condition for edge in spec.edges}
    assert edges["/dispatch", "/file"] == "has(hop.tool_name) && hop.tool_name == 'file'"
    assert ("/file", "/collector") in edges
    assert "'file'" in str(edges["/dispatch", "/unknown"])


async def test_a_handle_that_an_answer_names_is_read_by_the_next_question(
    start: Start, tmp_path: Path
) -> None:
    lines = [f"{n:05d} The lamp was lit." for n in range(4_000)]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    read = call("file", "read", op="read", path="{handle}", find="03210 ", limit=23)
    both = read["tool_calls"] + call("web_fetch", "fetch", url="file:///log.txt")["tool_calls"]
    script = [{"tool_calls": both}, {"text": "It is in {handle}."}]
    colony = await start("research", script=script, environment={"COLONY_CORPUS": str(tmp_path)})

    for question in ("What is in the log?", "And at 3210?"):
        trace_id = await colony.harness.ask("/prep", question, context={"session_id": SESSION})
        assert str(await colony.answer(trace_id)).startswith("It is in blob:")

    rows = await colony.rows("thread", trace_id=trace_id)
    first, second = [row["turn"] for row in rows if row["call_id"] == "read"]
    assert "invalid_input" in first
    assert lines[3_210] in second
