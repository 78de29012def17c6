"""The reads: registry, graph, traces, messages, dead letters, rounds; health."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from colony.access import Access
from colony.body import Body, Entry

Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


async def ask(access: Access, text: str = "you", target: str = "/greet") -> str:
    """Admit a message, and wait for its trace to end."""
    birth = await access.admission.admit(target, Body.of(Entry.say("user", text)))
    assert await access.endings.wait(birth.trace_id, 10)
    return birth.trace_id


async def read(http: httpx.AsyncClient, url: str, **query: Any) -> Any:
    response = await http.get(url, params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_registry_names_cells_and_their_hosts(
    http: httpx.AsyncClient, running: Access, eventually: Eventually
) -> None:
    async def hosted() -> bool:
        cells = (await read(http, "/colony/registry"))["registry"]
        assert [cell["path"] for cell in cells] == ["/greet", "/out", "/slow"]
        return all(cell["hosts"] == ["worker-0"] for cell in cells)

    await eventually(hosted)
    only = (await read(http, "/colony/registry", type="sink", active="true"))["registry"]
    assert [cell["path"] for cell in only] == ["/out"]


async def test_the_graph_has_conditions(http: httpx.AsyncClient, access: Access) -> None:
    graph = (await read(http, "/colony/graph"))["graph"]

    assert {"path": "/out", "cell_type": "sink"} in graph["nodes"]
    edges = {edge["from"]: edge for edge in graph["edges"]}
    assert edges["/greet"]["condition"] == "hop.route == 'done'"
    assert "condition" not in edges["/slow"]
    assert (await read(http, "/colony/graph", scope="/out"))["graph"]["edges"] == []


async def test_a_trace_reads_in_order_and_with_its_record(
    http: httpx.AsyncClient, running: Access
) -> None:
    trace_id = await ask(running)

    told = await read(http, "/colony/trace", trace_id=trace_id)
    assert [(row["from_path"], row["to_path"]) for row in told["trace"]] == [
        ("@external", "/greet"),
        ("/greet", "/out"),
    ]
    assert told["record"]["cause"] == "completed"
    assert told["trace"][1]["condition"] == "hop.route == 'done'"


async def test_messages_page_from_the_newest(http: httpx.AsyncClient, running: Access) -> None:
    for text in ("a", "b", "c"):
        await ask(running, text)

    seen: list[Any] = []
    query: dict[str, Any] = {"limit": 2, "to_path_prefix": "/out"}
    while rows := (await read(http, "/colony/messages", **query))["messages"]:
        seen += rows
        query |= {"before_created_at": rows[-1]["created_at"], "before_id": rows[-1]["id"]}

    texts = [row["body_payload"]["messages"][0]["text"] for row in seen]
    assert sorted(texts) == ["hello a", "hello b", "hello c"]
    ages = [(row["created_at"], row["id"]) for row in seen]
    assert ages == sorted(ages, reverse=True)


async def test_a_scan_that_hits_its_budget_says_so(
    http: httpx.AsyncClient, running: Access
) -> None:
    await ask(running)
    await ask(running)

    assert (await read(http, "/colony/messages"))["complete"] is True
    assert (await read(http, "/colony/messages", scan_budget=1))["complete"] is False


async def test_a_blob_is_shown_on_request(http: httpx.AsyncClient, running: Access) -> None:
    await ask(running, "x" * 70_000)

    query = {"to_path_prefix": "/out"}
    [row] = (await read(http, "/colony/messages", **query))["messages"]
    assert (row["body_kind"], row["body_payload"].keys()) == ("blob", {"blob_id"})
    [row] = (await read(http, "/colony/messages", **query, resolve_blob=True))["messages"]
    assert len(row["body_payload"]["messages"][0]["text"]) > 70_000


async def test_traces_are_listed_by_state(http: httpx.AsyncClient, running: Access) -> None:
    trace_id = await ask(running)

    ended = (await read(http, "/colony/traces", state="ended"))["traces"]
    assert [trace["trace_id"] for trace in ended] == [trace_id]
    assert (await read(http, "/colony/traces", state="open"))["traces"] == []


@pytest.mark.parametrize(
    "url",
    [
        "/colony/registry?limit=0",
        "/colony/registry?limit=1001",
        "/colony/registry?limit=many",
        "/colony/registry?pathprefix=/x",
        "/colony/registry?path=/x&path=/y",
        "/colony/trace?since=yesterday",
        f"/colony/trace?since={2**63}",
        f"/colony/dead_letters?since={10**26}",
        f"/colony/messages?until={10**26}",
        f"/colony/messages?before_created_at={10**26}&before_id=x",
        f"/colony/events?trace_id=x&after={10**26}-1",
        f"/colony/events?trace_id=x&after=1-{2**63}",
        "/colony/events?trace_id=x&after=٣-1",
        "/colony/events?trace_id=x&after=",
        f"/colony/events?after={10**26}-1",
        "/colony/messages?before_id=x",
        "/colony/messages?body_kind=large",
        "/colony/messages?scan_budget=50001",
        "/colony/traces?state=asleep",
        "/colony/dead_letters?error=x",
        "/colony/rounds?turn=1",
        "/healthz?x=1",
    ],
)
async def test_a_query_that_is_wrong_is_refused(http: httpx.AsyncClient, url: str) -> None:
    response = await http.get(url)

    assert (response.status_code, response.json()["code"]) == (400, "bad_query")


async def test_numbers_at_their_bound_are_answered(http: httpx.AsyncClient) -> None:
    letters = await read(http, "/colony/dead_letters", since=2**63 - 1)

    assert letters["dead_letters"] == []


async def test_an_event_id_in_the_header_is_bounded_as_well(http: httpx.AsyncClient) -> None:
    headers = {"Last-Event-ID": f"{10**26}-1"}
    response = await http.get("/colony/events?trace_id=x", headers=headers)

    assert (response.status_code, response.json()["code"]) == (400, "bad_query")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("/colony/trace?trace_id=x", "trace_not_found"),
        ("/colony/dead_letters/1-1", "dead_letter_not_found"),
        ("/colony/dead_letters/x", "dead_letter_not_found"),
        ("/colony/rounds/x", "round_not_found"),
        ("/colony/events?trace_id=x", "trace_not_found"),
        ("/colony/mutations", "not_found"),
        ("/colony/templates", "not_found"),
        ("/ui/", "not_found"),
    ],
)
async def test_what_is_not_there_is_404(http: httpx.AsyncClient, url: str, code: str) -> None:
    response = await http.get(url)

    assert (response.status_code, response.json()["code"]) == (404, code)


async def test_another_method_is_405(http: httpx.AsyncClient) -> None:
    response = await http.put("/messages", json={})

    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")


async def test_a_dead_letter_is_read_replayed_and_dropped(
    http: httpx.AsyncClient, running: Access
) -> None:
    trace_id = await ask(running, target="/nobody")
    [row] = (await read(http, "/colony/dead_letters", error_code="unresolved_path"))["dead_letters"]
    assert (row["trace_id"], row["original_target"]) == (trace_id, "/nobody")
    assert (await read(http, f"/colony/dead_letters/{row['id']}"))["dead_letter"] == row

    replayed = await http.post(f"/colony/dead_letters/{row['id']}/replay")
    again = await http.post(f"/colony/dead_letters/{row['id']}/replay")
    assert replayed.status_code == 202
    assert replayed.json() == again.json()
    assert replayed.json()["trace_id"] != trace_id

    dropped = await http.delete(f"/colony/dead_letters/{row['id']}")
    assert dropped.json()["dead_letter"] == row
    assert (await http.get(f"/colony/dead_letters/{row['id']}")).status_code == 404


async def test_dropping_all_answers_with_what_was_there(
    http: httpx.AsyncClient, running: Access
) -> None:
    for _ in range(3):
        await ask(running, target="/nobody")

    dropped = (await http.delete("/colony/dead_letters")).json()
    assert (len(dropped["dead_letters"]), dropped["count"]) == (3, 0)
    assert (await read(http, "/colony/dead_letters"))["count"] == 0


async def test_without_stores_no_round_is_open(http: httpx.AsyncClient) -> None:
    assert await read(http, "/colony/rounds") == {"rounds": []}


@pytest.mark.parametrize("url", ["/health", "/healthz"])
async def test_a_process_that_answers_is_healthy(http: httpx.AsyncClient, url: str) -> None:
    assert await read(http, url) == {"status": "ok"}


async def test_a_colony_nobody_runs_is_not_ready(http: httpx.AsyncClient) -> None:
    response = await http.get("/readyz")

    assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    assert response.json()["problems"] == ["no router is running", "no worker is running"]


async def test_a_colony_that_runs_is_ready(
    http: httpx.AsyncClient, running: Access, eventually: Eventually
) -> None:
    async def ready() -> bool:
        return (await http.get("/readyz")).status_code == 200

    await eventually(ready)
