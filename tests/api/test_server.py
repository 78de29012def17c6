"""The interface on a socket: streams of events, and a server that goes away."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from colony.access import Access
from colony.api.requests import _read
from colony.api.server import Server
from colony.body import Body, Entry
from colony.codec import decode_head
from colony.errors import ConfigError
from colony.live import LiveEvent
from colony.log import Outage
from colony.principals import Principals
from colony.testing.claims import eventually
from colony.testing.redis_server import RedisServer
from colony.topology.model import ColonySettings, TopologySpec


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = Server(url, "colony", host="127.0.0.1", port=0, principals=Principals())
    task = asyncio.create_task(server.serve())
    try:
        async with httpx.AsyncClient(base_url=server.address, timeout=30) as http:
            yield server, http
    finally:
        server.stop()
        await task


async def admit(access: Access, text: str = "you", target: str = "/greet") -> str:
    return (await access.admission.admit(target, Body.of(Entry.say("user", text)))).trace_id


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Each event, comments included."""
    event: dict[str, Any] = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if line:
            event[name or "comment"] = json.loads(value) if name == "data" else value
        elif event:
            yield event
            event = {}


async def test_the_events_of_a_trace_are_its_hops_to_its_end(running: Access) -> None:
    trace_id = await admit(running)
    async with serving(running.link.url) as (_, http):
        async with http.stream("GET", f"/colony/events?trace_id={trace_id}") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-accel-buffering"] == "no"
            seen = [event async for event in events(response)]

    assert [event["event"] for event in seen] == ["hop", "hop", "end"]
    assert [event["data"]["to_path"] for event in seen[:2]] == ["/greet", "/out"]


async def test_what_a_cell_tells_comes_between_the_hops_of_its_trace(running: Access) -> None:
    trace_id = await admit(running, target="/slow")
    event = LiveEvent(trace_id, "/slow", "text", {"message_id": "m", "offset": 0, "text": "hel"})
    message = json.dumps(event.to_json())
    channel = running.keys.live()
    async with serving(running.link.url) as (_, http):
        async with http.stream("GET", f"/colony/events?trace_id={trace_id}") as response:
            stream = events(response)
            assert (await anext(stream))["event"] == "hop"

            async def heard() -> bool:
                return await running.link.command("PUBLISH", channel, message) > 0

            await eventually(heard)
            told = await anext(stream)

    assert told == {"event": "delta", "data": event.to_json()}


async def test_events_go_on_where_they_were_left(running: Access) -> None:
    trace_id = await admit(running)
    async with serving(running.link.url) as (_, http):
        url = f"/colony/events?trace_id={trace_id}"
        async with http.stream("GET", url) as response:
            first = await anext(events(response))
        headers = {"Last-Event-ID": first["id"]}
        async with http.stream("GET", url, headers=headers) as response:
            rest = [event async for event in events(response)]

    assert [event["event"] for event in rest] == ["hop", "end"]
    assert rest[0]["data"]["to_path"] == "/out"


async def test_all_events_come_as_they_happen(running: Access) -> None:
    async with serving(running.link.url) as (_, http):
        async with http.stream("GET", "/colony/events") as response:
            stream = events(response)
            assert (await anext(stream))["comment"] == "following"
            trace_id = await admit(running)
            async with asyncio.timeout(10):
                seen = [await anext(stream), await anext(stream)]

    assert [event["data"]["trace_id"] for event in seen] == [trace_id, trace_id]


async def test_taking_up_the_stream_of_all_starts_with_a_gap(running: Access) -> None:
    async with serving(running.link.url) as (_, http):
        headers = {"Last-Event-ID": "1-1"}
        async with http.stream("GET", "/colony/events", headers=headers) as response:
            stream = events(response)
            await anext(stream)
            assert (await anext(stream))["event"] == "gap"


async def test_the_budget_is_that_of_the_newest_tree(access: Access, spec: TopologySpec) -> None:
    async with serving(access.link.url) as (_, http):
        settings = ColonySettings(message_default_ttl=7)
        await access.publication.publish(spec.model_copy(update={"settings": settings}))

        async def budgeted() -> bool:
            body = {"messages": []}
            await http.post("/messages", json={"target": "/greet", "body": body})
            newest = await access.link.command("XREVRANGE", access.keys.router(), "+", "-")
            return decode_head(newest[0][1][1]).ttl == 7

        await eventually(budgeted)


async def test_a_stop_ends_the_streams(running: Access) -> None:
    async with serving(running.link.url) as (server, http):
        async with http.stream("GET", "/colony/events") as response:
            stream = events(response)
            await anext(stream)
            server.stop()
            async with asyncio.timeout(3):
                with suppress(StopAsyncIteration, httpx.RemoteProtocolError):
                    await anext(stream)


async def test_a_server_that_is_away_is_503_and_comes_back(redis_binary: Path) -> None:
    with RedisServer.start(redis_binary, fsync="always") as redis:
        async with serving(redis.url) as (_, http):
            redis.kill()
            for url in ("/readyz", "/colony/graph"):
                response = await http.get(url)
                assert (response.status_code, response.json()["code"]) == (
                    503,
                    "server_unavailable",
                )
            assert (await http.get("/healthz")).status_code == 200
            redis.restart()

            async def back() -> bool:
                return (await http.get("/colony/graph")).status_code == 200

            await eventually(back)


async def test_a_server_that_hangs_is_503(
    redis_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colony.access.client.PATIENCE_S", 0.3)
    with RedisServer.start(redis_binary) as redis:
        async with serving(redis.url) as (_, http):
            assert (await http.get("/colony/graph")).status_code == 200
            redis.pause()
            for method, url in (("GET", "/readyz"), ("GET", "/colony/traces")):
                response = await http.request(method, url)
                assert (response.status_code, response.json()["code"]) == (
                    503,
                    "server_unavailable",
                )
            redis.resume()
            assert (await http.get("/colony/graph")).status_code == 200


async def test_who_sends_too_much_is_told_so(access: Access) -> None:
    async with serving(access.link.url) as (_, http):
        response = await http.post(
            "/messages",
            content=b" " * (11 * 1024 * 1024),
            headers={"Content-Type": "application/json"},
        )

    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")


async def test_who_asks_before_sending_too_much_is_told_at_once(access: Access) -> None:
    head = (
        "POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
    )
    async with serving(access.link.url) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.split(":")[-1])
        writer.write(head.encode())
        async with asyncio.timeout(5):
            answered = await reader.read()
        writer.close()

    assert answered.startswith(b"HTTP/1.1 413 ")


SLOW = (
    "POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Content-Length: 99\r\n\r\n{"
)


@asynccontextmanager
async def sending(server: Server, text: str) -> AsyncIterator[asyncio.StreamReader]:
    """What comes back to a client that sends this and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.split(":")[-1])
    writer.write(text.encode())
    async with asyncio.timeout(10):
        yield reader
    writer.close()


async def test_a_body_that_does_not_come_is_408_and_the_end(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colony.api.requests.BODY_TIMEOUT_S", 0.1)
    async with serving(access.link.url) as (server, _), sending(server, SLOW) as reader:
        answered = await reader.read()

    assert answered.startswith(b"HTTP/1.1 408 ")
    assert b"content-type: application/problem+json" in answered
    assert b'"request_timeout"' in answered


async def test_a_stop_answers_who_is_still_sending_and_logs_no_traceback(
    access: Access, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("colony.api.server.GRACE_S", 0.1)
    begun = asyncio.Event()

    async def reading(request: Request) -> bytes:
        begun.set()
        return await _read(request)

    monkeypatch.setattr("colony.api.requests._read", reading)
    async with serving(access.link.url) as (server, _), sending(server, SLOW) as reader:
        await begun.wait()
        server.stop()
        answered = await reader.read()

    assert answered.startswith(b"HTTP/1.1 503 ")
    assert b'"server_stopping"' in answered
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_server_that_is_away_is_said_once(
    redis_binary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Outage, "_said", -1000.0)
    with RedisServer.start(redis_binary) as redis:
        async with serving(redis.url) as (_, http):
            redis.kill()
            for _ in range(5):
                body = {"target": "/greet", "body": {"messages": []}}
                assert (await http.post("/messages", json=body)).status_code == 503

    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage().split()[0] for record in errors] == ["server_unavailable"]


async def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            Server(
                "redis://127.0.0.1:1",
                "colony",
                host="127.0.0.1",
                port=port,
                principals=Principals(),
            )
