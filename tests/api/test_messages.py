"""POST /messages: what is admitted, what is refused, what is waited for."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from colony.access import Access
from colony.testing.claims import eventually
from colony.topology.model import ColonySettings, TopologySpec


def message(text: str = "you", target: str = "/greet", **more: object) -> dict[str, Any]:
    entry = {"origin": "user", "type": "text", "text": text}
    return {"target": target, "body": {"messages": [entry]}, **more}


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert told.keys() >= {"type", "title", "status", "code", "detail"}
    assert told["status"] == response.status_code
    return response.status_code, told["code"]


async def test_a_message_is_admitted_with_its_ids(http: httpx.AsyncClient, access: Access) -> None:
    response = await http.post("/messages", json=message(headers={"chat": 7}, hop={"kind": "x"}))

    assert response.status_code == 202
    told = response.json()
    assert told["message_id"] == told["trace_id"]
    trace = await access.traces.get(told["trace_id"])
    assert (trace.state, trace.live, trace.entry) == ("open", 1, "/greet")


async def test_headers_become_context_and_hop_stays_hop(
    http: httpx.AsyncClient, running: Access
) -> None:
    sent = message(headers={"chat": 7}, hop={"kind": "x"}, wait=10)
    trace_id = (await http.post("/messages", json=sent)).json()["trace_id"]

    first = (await running.traces.log(trace_id))[0].head
    assert (first.sender, first.context, first.hop) == ("@external", {"chat": 7}, {"kind": "x"})


async def test_waiting_answers_with_what_came_of_it(
    http: httpx.AsyncClient, running: Access
) -> None:
    response = await http.post("/messages?wait=10", json=message())

    assert response.status_code == 200
    told = response.json()
    assert (told["state"], told["cause"], told["reason"]) == ("ended", "completed", None)
    [output] = told["outputs"]
    assert output["path"] == "/out"
    assert output["body"]["messages"][0]["text"] == "hello you"


async def test_a_wait_that_runs_out_is_accepted_only(
    http: httpx.AsyncClient, running: Access
) -> None:
    response = await http.post("/messages", json=message(target="/slow", wait=0.05))

    assert response.status_code == 202
    assert (await running.traces.get(response.json()["trace_id"])).state == "open"


async def test_a_timeout_ends_the_trace(http: httpx.AsyncClient, running: Access) -> None:
    response = await http.post("/messages", json=message(target="/slow", timeout_s=0.05, wait=10))

    assert response.status_code == 200
    assert response.json()["cause"] == "failed"
    assert response.json()["reason"] == "trace_timeout"


async def test_the_shortest_timeout_is_still_one(http: httpx.AsyncClient, access: Access) -> None:
    response = await http.post("/messages", json=message(timeout_s=0.0001))

    deadlines = await access.link.command("ZRANGE", access.keys.deadlines(), 0, -1)
    assert deadlines == [response.json()["trace_id"].encode()]


async def test_an_unknown_target_is_accepted_and_dies(
    http: httpx.AsyncClient, running: Access
) -> None:
    response = await http.post("/messages", json=message(target="/nobody", wait=10))

    assert (response.status_code, response.json()["cause"]) == (200, "failed")
    [letter] = await running.dead_letters.list()
    assert letter.code == "unresolved_path"


async def test_a_hundred_waiters_share_one_connection(
    http: httpx.AsyncClient, running: Access
) -> None:
    await http.post("/messages", json=message(wait=10))
    before = await _clients(running)
    waiting = [
        asyncio.create_task(http.post("/messages", json=message(target="/slow", wait=2)))
        for _ in range(100)
    ]

    async def all_wait() -> bool:
        return len(await running.traces.ids("open", limit=200)) == 100

    await eventually(all_wait)
    assert await _clients(running) == before
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def _clients(access: Access) -> int:
    return len((await access.link.command("CLIENT", "LIST")).splitlines())


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("ttl", 0, "invalid_ttl"),
        ("ttl", -1, "invalid_ttl"),
        ("ttl", "5", "invalid_ttl"),
        ("ttl", 1.5, "invalid_ttl"),
        ("ttl", True, "invalid_ttl"),
        ("ttl", 2**32, "invalid_ttl"),
        ("headers", 5, "invalid_headers"),
        ("hop", [], "invalid_hop"),
        ("body", {}, "invalid_ubf_body"),
        ("body", None, "invalid_ubf_body"),
        ("body", {"messages": [{"origin": "you", "type": "text"}]}, "invalid_ubf_body"),
        ("target", "", "invalid_target"),
        ("target", 5, "invalid_target"),
        ("wait", -1, "invalid_wait"),
        ("wait", 301, "invalid_wait"),
        ("timeout_s", 0, "invalid_timeout"),
        ("tll", 5, "unknown_field"),
    ],
)
async def test_a_field_that_is_wrong_is_refused_by_its_code(
    http: httpx.AsyncClient, access: Access, field: str, value: object, code: str
) -> None:
    response = await http.post("/messages", json=message() | {field: value})

    assert problem(response) == (422, code)
    assert await access.traces.ids("open", limit=10) == []


async def test_a_ttl_of_null_is_the_budget_of_the_tree(
    http: httpx.AsyncClient, running: Access
) -> None:
    trace_id = (await http.post("/messages", json=message(ttl=None, wait=10))).json()["trace_id"]

    assert (await running.traces.log(trace_id))[0].head.ttl == 63


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"x"', '{"target": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "\xff"],
    ids=["empty", "cut", "list", "string", "nan", "twice", "deep", "bytes"],
)
async def test_a_body_that_is_no_json_object_is_refused(http: httpx.AsyncClient, text: str) -> None:
    response = await http.post(
        "/messages",
        content=text.encode("latin-1"),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )

    assert problem(response) == (400, "invalid_json")


async def test_text_that_no_encoding_knows_is_refused(http: httpx.AsyncClient) -> None:
    text = r'{"target": "/greet", "body": {"messages": []}, "hop": {"x": "\ud800"}}'
    response = await http.post(
        "/messages", content=text, headers={"Content-Type": "application/json"}
    )

    assert problem(response) == (422, "envelope_invalid")


async def test_headers_that_nest_too_deep_are_refused(http: httpx.AsyncClient) -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"x": deep}
    response = await http.post("/messages", json=message(headers=deep))

    assert problem(response) == (422, "envelope_invalid")


async def test_another_media_type_is_refused(http: httpx.AsyncClient) -> None:
    response = await http.post("/messages", content="{}", headers={"Content-Type": "text/plain"})

    assert problem(response) == (415, "unsupported_media_type")


async def test_a_body_above_the_limit_is_refused_while_it_streams(
    http: httpx.AsyncClient,
) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        while sent < 64:
            sent += 1
            yield b"x" * 1024 * 1024

    async def stream() -> Any:
        for chunk in chunks():
            yield chunk

    response = await http.post(
        "/messages", content=stream(), headers={"Content-Type": "application/json"}
    )

    assert problem(response) == (413, "body_too_large")
    assert sent < 22


async def test_an_unknown_parameter_is_refused(http: httpx.AsyncClient, access: Access) -> None:
    response = await http.post("/messages?wiat=3", json=message())

    assert problem(response) == (400, "bad_query")
    assert await access.traces.ids("open", limit=10) == []


async def test_wait_in_query_and_body_is_refused(http: httpx.AsyncClient) -> None:
    assert problem(await http.post("/messages?wait=1", json=message(wait=1))) == (400, "bad_query")


async def test_an_idempotency_key_admits_once(http: httpx.AsyncClient, access: Access) -> None:
    key = {"Idempotency-Key": "order-1"}
    first = await http.post("/messages", json=message(), headers=key)
    again = await http.post("/messages", json=message(), headers=key)

    assert first.json() == again.json()
    assert len(await access.traces.ids("open", limit=10)) == 1


async def test_an_idempotency_key_of_another_request_is_refused(http: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "order-1"}
    await http.post("/messages", json=message(), headers=key)
    other = await http.post("/messages", json=message("somebody else"), headers=key)

    assert problem(other) == (422, "idempotency_key_reused")


async def test_an_idempotency_key_holds_when_the_tree_changes(
    http: httpx.AsyncClient, access: Access, spec: TopologySpec
) -> None:
    key = {"Idempotency-Key": "order-1"}
    first = await http.post("/messages", json=message(), headers=key)
    settings = ColonySettings(message_default_ttl=7)
    await access.publication.publish(spec.model_copy(update={"settings": settings}))
    await access.publication.refresh()
    again = await http.post("/messages", json=message(), headers=key)

    assert (again.status_code, again.json()) == (202, first.json())


@pytest.mark.parametrize("more", [{"ttl": 64}, {"timeout_s": 5}, {"headers": {"chat": 1}}])
async def test_whatever_a_client_says_is_part_of_its_request(
    http: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    key = {"Idempotency-Key": "order-1"}
    await http.post("/messages", json=message(), headers=key)
    other = await http.post("/messages", json=message(**more), headers=key)

    assert problem(other) == (422, "idempotency_key_reused")


async def test_a_message_before_any_tree_is_refused(redis_url: str) -> None:
    from colony.api.app import make_app
    from colony.engine import Engine
    from colony.principals import Principals

    async with Access(redis_url, "empty") as access:
        transport = httpx.ASGITransport(make_app(Engine(access), principals=Principals()))
        async with httpx.AsyncClient(transport=transport, base_url="http://[::1]:80") as http:
            response = await http.post("/messages", json=message())

    assert problem(response) == (503, "topology_missing")


async def test_a_full_server_refuses_births_and_says_so(
    http: httpx.AsyncClient, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    await access.topology()
    await access.link.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        response = await http.post("/messages", json=message())
        await http.post("/messages", json=message())
        ready = await http.get("/readyz")
        status = (await http.get("/colony/status")).json()["status"]
    finally:
        await access.link.command("CONFIG", "SET", "maxmemory", "0")

    assert problem(response) == (503, "server_full")
    assert response.headers["retry-after"]
    assert [line.split()[0] for line in caplog.messages] == ["server_full"]
    assert problem(ready) == (503, "server_full")
    assert ready.json()["problems"] == status["problems"]
    assert status["problems"][0].startswith("server_full: Redis is full: ")
    assert status["backlog"]["refusing"]
    assert (await http.get("/readyz")).json()["code"] == "not_ready"


async def test_a_server_that_may_evict_is_given_no_message(
    http: httpx.AsyncClient,
    access: Access,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def posted() -> tuple[int, str]:
        answer = await http.post("/messages", json=message())
        return answer.status_code, answer.json().get("code", "")

    async def refused() -> bool:
        return await posted() == (503, "server_unfit")

    async def admitted() -> bool:
        return (await posted())[0] == 202

    assert await admitted()
    await access.link.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    try:
        await eventually(refused)
        ready = await http.get("/readyz")
        status = (await http.get("/colony/status")).json()["status"]
    finally:
        await access.link.command("CONFIG", "SET", "maxmemory-policy", "noeviction")

    assert problem(ready) == (503, "server_unfit")
    assert ready.json()["problems"] == status["problems"]
    assert status["problems"][0].startswith("server_unfit: maxmemory-policy is volatile-lru")
    await eventually(admitted)
    assert [line.split()[0] for line in caplog.messages] == ["server_unfit"]


async def test_above_the_backlog_a_message_is_refused_with_when_to_try_again(
    http: httpx.AsyncClient,
    access: Access,
    spec: TopologySpec,
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = spec.model_copy(update={"settings": ColonySettings(ingress_backlog_max=2)})
    await access.publication.publish(few)
    key = {"Idempotency-Key": "k"}
    first = await http.post("/messages", json=message(), headers=key)
    assert (await http.post("/messages", json=message())).status_code == 202
    before = await access.link.command("DBSIZE")

    refused = await http.post("/messages", json=message())

    assert problem(refused) == (429, "backlogged")
    await http.post("/messages", json=message())
    told = [(r.levelno, r.getMessage().split()[0]) for r in caplog.records]
    assert told == [(logging.WARNING, "backlogged")]
    backlog = (await http.get("/colony/status")).json()["status"]["backlog"]
    assert backlog == {"waiting": 2, "max": 2, "refusing": True}
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert await access.link.command("DBSIZE") == before
    again = await http.post("/messages", json=message(), headers=key)
    assert (again.status_code, again.json()) == (202, first.json())
    other = await http.post("/messages", json=message("other"), headers=key)
    assert problem(other) == (422, "idempotency_key_reused")

    await access.link.command("XTRIM", access.keys.router(), "MAXLEN", 0)

    async def admitted() -> bool:
        return (await http.post("/messages", json=message())).status_code == 202

    await eventually(admitted)
