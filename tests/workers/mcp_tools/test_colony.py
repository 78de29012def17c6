"""A colony whose model calls the tools of real servers, by edges on the prefix of their names."""

import asyncio
from collections.abc import Sequence
from typing import Any

from colony.body import Body, Entry
from colony.keys import Keys
from colony.link import Link
from colony.operations import Select
from colony.publication import Publication
from colony.roles import Router, Worker
from colony.schema import Schema
from colony.store.tables import StoreTables
from colony.testing.claims import eventually
from colony.testing.harness import Harness
from colony.topology.load import load
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, ModifierSpec, TopologySpec
from colony.traces import Traces
from colony.trees import shipped
from tests.workers.mcp_tools.servers import TIME, children
from workers.store import Store

LOOP = "/tool-loop"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def tree(*rounds: Sequence[dict[str, Any]]) -> TopologySpec:
    """The shipped loop, its one tool replaced by a time server and an answer to all other names."""
    shipped_tree = load(shipped("tool-loop"), environment={}).publishable()
    script = [*({"tool_calls": [*calls]} for calls in rounds), {"text": "done"}]
    replaced = {f"{LOOP}/tool-a"}
    cells = [cell for cell in shipped_tree.cells if cell.path not in {*replaced, "/llm"}]
    params = {"provider": "scripted", "script": script}
    cells += [
        next(c for c in shipped_tree.cells if c.path == "/llm").model_copy(
            update={"params": params}
        ),
        CellSpec(path=f"{LOOP}/time", cell=CellSettings(type="mcp"), params={"command": [*TIME]}),
        CellSpec(
            path=f"{LOOP}/unknown",
            cell=CellSettings(type="code"),
            params={"handler": "workers.toolloop.unknown:unknown"},
        ),
    ]
    edges = [edge for edge in shipped_tree.edges if not {edge.source, edge.target} & replaced]
    is_time = "has(hop.tool_name) && hop.tool_name.startsWith('time__')"
    result = ModifierSpec(set_hop={"route": "'c_res'"})
    dispatcher, collector = f"{LOOP}/dispatcher", f"{LOOP}/collector"
    edges += [
        EdgeSpec(source=dispatcher, target=f"{LOOP}/time", condition=is_time),
        EdgeSpec(
            source=dispatcher,
            target=f"{LOOP}/unknown",
            condition=f"hop.route == 'tool' && !({is_time})",
        ),
        EdgeSpec(source=f"{LOOP}/time", target=collector, modifier=result),
        EdgeSpec(source=f"{LOOP}/unknown", target=collector),
    ]
    return shipped_tree.model_copy(update={"cells": tuple(cells), "edges": tuple(edges)})


async def results(colony: Harness, trace_id: str) -> list[str]:
    """The texts of the results that the collector stored, in any order."""
    params = next(cell.params for cell in colony.spec.cells if cell.path == "/store")
    tables = StoreTables(
        colony.link,
        colony.keys,
        path="/store",
        schema=Schema(tables=Store.Params.model_validate(params).tables),
        trace_id=trace_id,
        envelope_id="test",
    )
    reply = await tables.execute(Select(table="thread", columns=("role", "turn")))
    rows = [dict(row) for row in reply.rows or ()]
    return [str(row["turn"]) for row in rows if row["role"] == "tool"]


async def test_a_model_is_offered_the_tools_of_a_server_and_its_calls_are_answered(
    redis_url: str,
) -> None:
    berlin = {"timezone": "Europe/Berlin"}
    spec = tree(
        [call("time__get_current_time", **berlin), call("time__get_current_time")],
        [call("time__nothing"), call("weather__now")],
    )
    async with Harness(redis_url, spec) as colony:
        offered = [tool.name for tool in colony.workshop.cells["/llm"].tools]
        trace = await colony.ask("/capture", "what time is it?", ttl=200)
        await colony.finish()
        hops = await colony.hops(trace)
        stored = await results(colony, trace)
        [output] = await colony.outputs(trace)

    assert offered == ["time__get_current_time", "time__convert_time"]
    body: Any = output["body"]
    assert body["messages"][-1]["text"] == "done"
    told = ("Europe/Berlin", "invalid_arguments: 'timezone' is a", "time__nothing", "weather__now")
    assert len(stored) == len(told)
    assert all(any(words in result for result in stored) for words in told)
    # Its lane caught the one name that is not below the prefix of the server.
    assert len([hop for hop in hops if hop.head.target == f"{LOOP}/unknown"]) == 1


async def test_a_model_in_another_process_is_offered_the_tools_and_nothing_runs_on(
    redis_url: str,
) -> None:
    keys, before = Keys("live"), children()
    spec = tree([call("time__get_current_time", timezone="UTC")])
    link = Link(redis_url)
    await Publication(link, keys).publish(spec)
    servers = Worker(redis_url, keys, environment={}, patterns=(f"{LOOP}/time",))
    others = ("/capture", "/llm", "/store", "/park", "/sink", *(f"{LOOP}/{c}" for c in "cdu"))
    models = Worker(redis_url, keys, environment={}, patterns=tuple(f"{path}*" for path in others))
    roles = [Router(redis_url, keys), models, servers]
    serving = [asyncio.create_task(role.serve()) for role in roles]

    def offered() -> list[str]:
        llm = models.workshop.cells.get("/llm")
        return [tool.name for tool in llm.tools] if llm else []

    await eventually(lambda: "time__get_current_time" in offered())
    traces = Traces(link, keys)
    body = Body.of(Entry.say("user", "what time is it?"))
    trace = (await traces.birth("/capture", body, ttl=200)).trace_id
    await eventually(lambda: traces.outputs(trace))
    for role in roles:
        role.stop()
    await asyncio.gather(*serving)
    await link.close()

    assert children() <= before
