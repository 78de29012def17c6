"""The reads: registry, graph, traces, messages, dead letters, rounds; health."""

from typing import Any

import httpx
import pytest

from colony.access import Access
from colony.body import Body, Entry
from colony.counts import Counts
from colony.envelope import Headers
from colony.inbox import Inbox
from colony.keys import GROUP
from colony.shelf import Shelf
from colony.streams import Step, Streams
from colony.testing.claims import eventually


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
    http: httpx.AsyncClient, running: Access
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


async def test_a_backlog_is_told_where_redis_cannot_compute_the_lag(
    http: httpx.AsyncClient, access: Access
) -> None:
    stream = access.keys.cell("/greet")
    entries = [await access.link.command("XADD", stream, "*", "x", "y") for _ in range(5)]
    await access.link.command("XREADGROUP", "GROUP", GROUP, "w", "COUNT", 1, "STREAMS", stream, ">")
    await access.link.command("XDEL", stream, entries[2])
    (group,) = await access.link.command("XINFO", "GROUPS", stream)
    assert dict(zip(group[::2], group[1::2], strict=True))[b"lag"] is None

    cells = (await read(http, "/colony/status"))["status"]["cells"]

    assert {cell["path"]: cell["waiting"] for cell in cells}["/greet"] == 4


async def test_the_status_counts_what_was_repaired(http: httpx.AsyncClient, access: Access) -> None:
    await Counts(access.link, access.keys).add("claims_lost", 2)

    status = (await read(http, "/colony/status"))["status"]

    assert {name: n for name, n in status["repairs"].items() if n} == {"claims_lost": 2}
    assert status["problems"] == ["no router is running", "no worker is running"]


async def test_a_trace_reads_in_order_and_with_its_record(
    http: httpx.AsyncClient, running: Access
) -> None:
    trace_id = await ask(running)

    told = await read(http, "/colony/trace", trace_id=trace_id)
    assert [(row["from_path"], row["to_path"]) for row in told["trace"]] == [
        ("@external", "/greet"),
        ("/greet", "/out"),
    ]
    assert (told["record"]["cause"], told["record"]["waits_for"]) == ("completed", None)
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
    assert (await read(http, "/colony/traces", state="quiet"))["traces"] == []


async def test_a_trace_that_nobody_took_up_is_quiet_and_not_open(
    http: httpx.AsyncClient, access: Access
) -> None:
    moving, lost = [
        (await access.admission.admit("/greet", Body.of(Entry.say("user", "x")))).trace_id
        for _ in range(2)
    ]
    inbox = Inbox(access.link, "router-0")
    streams = Streams(access.link, access.keys, access.blobs)
    for delivery in await inbox.read([access.keys.router()], count=2, block_ms=None):
        if delivery.head.trace_id == lost:
            await streams.commit([Step(delivery)])

    [quiet] = (await read(http, "/colony/traces", state="quiet"))["traces"]
    [open_] = (await read(http, "/colony/traces", state="open"))["traces"]

    assert (quiet["trace_id"], quiet["state"], quiet["live"]) == (lost, "quiet", 0)
    assert (open_["trace_id"], open_["state"], open_["live"]) == (moving, "open", 1)
    counts = (await read(http, "/colony/status"))["status"]["traces"]
    assert (counts["open"], counts["quiet"], counts["ended"]) == (1, 1, 0)


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
        "/colony/dead_letters?dry_run=false",
        "/colony/dead_letters?after=x",
        f"/colony/dead_letters?until={10**26}",
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


@pytest.mark.parametrize("query", ["dry_run=perhaps", "error=x", "limit=0", "after=1"])
@pytest.mark.parametrize(("method", "url"), [("DELETE", ""), ("POST", "/replay")])
async def test_a_bulk_query_that_is_wrong_is_refused(
    http: httpx.AsyncClient, method: str, url: str, query: str
) -> None:
    response = await http.request(method, f"/colony/dead_letters{url}?{query}")

    assert (response.status_code, response.json()["code"]) == (400, "bad_query")


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
    into = replayed.json()["trace_id"]
    assert dropped.json()["dead_letter"] == {**row, "replayed_into": into}
    assert (await http.get(f"/colony/dead_letters/{row['id']}")).status_code == 404


async def buried(running: Access) -> list[str]:
    """Two letters of `/nobody` and one of `/nothing`; their traces, oldest first."""
    return [await ask(running, target=path) for path in ("/nobody", "/nothing", "/nobody")]


@pytest.mark.parametrize(("method", "url"), [("DELETE", ""), ("POST", "/replay")])
async def test_bulk_is_a_dry_run_unless_told_otherwise(
    http: httpx.AsyncClient, running: Access, method: str, url: str
) -> None:
    await buried(running)
    before = await read(http, "/colony/dead_letters")

    query = "?error_code=unresolved_path"
    told = await http.request(method, f"/colony/dead_letters{url}{query}")

    assert told.status_code == 200
    assert (told.json()["dry_run"], told.json()["count"]) == (True, 3)
    assert told.json()["by"] == [
        {"error_code": "unresolved_path", "cell": "/nobody", "count": 2},
        {"error_code": "unresolved_path", "cell": "/nothing", "count": 1},
    ]
    assert told.json().get("dropped", []) == told.json().get("replayed", []) == []
    assert await read(http, "/colony/dead_letters") == before


async def test_letters_are_dropped_by_filter(http: httpx.AsyncClient, running: Access) -> None:
    await buried(running)
    rows = (await read(http, "/colony/dead_letters"))["dead_letters"]

    query = "?to_path_prefix=/nobody&dry_run=false&limit=1"
    first = (await http.delete(f"/colony/dead_letters{query}")).json()
    second = (await http.delete(f"/colony/dead_letters{query}")).json()

    assert (first["dropped"], first["next"]) == ([rows[0]["id"]], rows[0]["id"])
    assert (second["dropped"], second["next"]) == ([rows[2]["id"]], None)
    left = await read(http, "/colony/dead_letters")
    assert (left["dead_letters"], left["count"]) == ([rows[1]], 1)


async def test_letters_are_replayed_by_filter_each_once(
    http: httpx.AsyncClient, running: Access
) -> None:
    *_, trace_id = await buried(running)
    [row] = (await read(http, "/colony/dead_letters", trace_id=trace_id))["dead_letters"]

    url = f"/colony/dead_letters/replay?trace_id={trace_id}&dry_run=false"
    told = await http.post(url)
    again = await http.post(url)

    assert told.status_code == again.status_code == 202
    [replayed] = told.json()["replayed"]
    assert replayed["id"] == row["id"]
    assert (await running.traces.get(replayed["trace_id"])).replayed_from == row["id"]
    assert (again.json()["count"], again.json()["replayed"]) == (0, [])


async def test_a_letter_that_cannot_be_replayed_is_told_beside_the_others(
    http: httpx.AsyncClient, running: Access
) -> None:
    await ask(running, target="/nobody")
    fields = ("trace", "t", "code", "envelope_lost", "facts", b"\x80", "head", b"\xc0", "body", "")
    lost = (await running.link.command("XADD", running.keys.dead(), "*", *fields)).decode()

    told = (await http.post("/colony/dead_letters/replay?dry_run=false")).json()
    alone = await http.post(f"/colony/dead_letters/{lost}/replay")

    assert (told["count"], len(told["replayed"])) == (1, 1)
    [refused] = told["refused"]
    assert (refused["id"], refused["code"]) == (lost, "envelope_invalid")
    assert (alone.status_code, alone.json()["code"]) == (422, "envelope_invalid")
    assert alone.json()["detail"] == refused["detail"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"to_path_prefix": "/nobody"}, [0, 2]),
        ({"from_path_prefix": "/greet"}, []),
        ({"error_code": "no_route"}, []),
        ({"since": 0}, [0, 1, 2]),
        ({"until": 0}, []),
        ({"limit": 2}, [0, 1]),
    ],
)
async def test_letters_are_listed_by_filter(
    http: httpx.AsyncClient, running: Access, query: dict[str, Any], found: list[int]
) -> None:
    traces = await buried(running)

    rows = (await read(http, "/colony/dead_letters", **query))["dead_letters"]

    assert [row["trace_id"] for row in rows] == [traces[n] for n in found]


async def test_letters_page_from_the_oldest(http: httpx.AsyncClient, running: Access) -> None:
    traces = await buried(running)

    seen: list[Any] = []
    query: dict[str, Any] = {"limit": 1}
    while rows := (await read(http, "/colony/dead_letters", **query))["dead_letters"]:
        seen += rows
        query["after"] = rows[-1]["id"]

    assert [row["trace_id"] for row in seen] == traces


async def test_without_stores_no_round_is_open(http: httpx.AsyncClient) -> None:
    assert await read(http, "/colony/rounds") == {"rounds": []}


@pytest.mark.parametrize("url", ["/health", "/healthz"])
async def test_a_process_that_answers_is_healthy(http: httpx.AsyncClient, url: str) -> None:
    assert await read(http, url) == {"status": "ok"}


async def test_a_colony_nobody_runs_is_not_ready(http: httpx.AsyncClient) -> None:
    response = await http.get("/readyz")

    assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    assert response.json()["problems"] == ["no router is running", "no worker is running"]


async def test_a_colony_that_runs_is_ready(http: httpx.AsyncClient, running: Access) -> None:
    async def ready() -> bool:
        return (await http.get("/readyz")).status_code == 200

    await eventually(ready)


async def test_traces_of_a_session_are_listed_with_their_questions(
    http: httpx.AsyncClient, running: Access
) -> None:
    context: Headers = {"session_id": "me"}
    birth = await running.admission.admit(
        "/greet", Body.of(Entry.say("user", "you")), context=context
    )
    assert await running.endings.wait(birth.trace_id, 10)
    await ask(running)

    told = await read(http, "/colony/traces", state="ended", session="me")

    assert told["complete"] is True
    [row] = told["traces"]
    assert (row["trace_id"], row["session"]) == (birth.trace_id, "me")
    assert (row["question"], row["waits_for"]) == ("you", None)
    assert len((await read(http, "/colony/traces", state="ended"))["traces"]) == 2
    assert (await http.get("/colony/traces?session=")).status_code == 400


async def test_a_document_is_read_in_ranges(http: httpx.AsyncClient, access: Access) -> None:
    birth = await access.admission.admit("/greet", Body.of(Entry.say("user", "you")))
    shelf = Shelf(access.link, access.keys, birth.trace_id, session="s", server=None)
    handle, key = await shelf.put("äb".encode())
    await access.link.command("SADD", access.keys.belongings(birth.trace_id), key)

    for query, expected in (
        ({}, "äb"),
        ({"offset": 2}, "b"),
        ({"limit": 2}, "ä"),
        ({"offset": 9}, ""),
    ):
        found = await http.get(f"/colony/documents/{handle}", params=query)
        assert (found.status_code, found.headers["Document-Size"]) == (200, "3")
        assert found.content == expected.encode()
    gone = await http.get("/colony/documents/blob:x")
    assert (gone.status_code, gone.json()["code"]) == (404, "document_not_found")
    assert (await http.get(f"/colony/documents/{handle}?limit=0")).status_code == 400
