"""The same contract over HTTP: a message is posted, its answer is posted back."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from colony.body import Body, Entry
from colony.envelope import Emission
from colony.errors import Backlogged
from colony.testing.claims import eventually
from colony.testing.harness import Harness
from colony.testing.host import RecordingHost
from colony.testing.source import RecordingSource
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec
from tests.workers.proxy import proxies
from tests.workers.proxy.proxies import Pauses, answer, running, source
from workers.proxy import Proxy
from workers.proxy.posting import Http

LOCAL = {"platform": "http", "listen": "127.0.0.1:0"}


class Receiver:
    """Whoever takes answers: `taken` is what was posted, `say` what it answers first."""

    def __init__(self) -> None:
        self.taken: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.say: list[tuple[int, dict[str, str]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.taken.append((json.loads(body), dict(self.headers)))
                status, headers = receiver.say.pop(0) if receiver.say else (204, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/answers"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@asynccontextmanager
async def listening(
    pauses: Pauses, source: RecordingSource, **params: object
) -> AsyncIterator[httpx.AsyncClient]:
    async with proxies.started(pauses, **{**LOCAL, **params}) as proxy, running(proxy, source):
        await eventually(lambda: address(proxy) is not None)
        async with httpx.AsyncClient(base_url=address(proxy) or "") as client:
            yield client


def address(proxy: Proxy) -> str | None:
    assert isinstance(proxy.platform, Http)
    return proxy.platform.intake.address


async def test_a_message_is_born_once_for_its_id(pauses: Pauses) -> None:
    found = source()
    message = {"chat_id": "room", "text": "hello", "message_id": "m1", "user_id": 4}
    async with listening(pauses, found) as client:
        first = await client.post("/message", json=message)
        again = await client.post("/message", json=message)
        other = await client.post("/message", json={**message, "text": "changed"})

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    (born,) = found.births
    assert born.session == "room"
    assert born.emission == Emission(
        hop={"platform": "http", "chat_id": "room", "message_id": "m1", "user_id": 4},
        body=Body.of(Entry.say("user", "hello")),
    )


async def test_messages_without_an_id_or_of_other_chats_are_others(pauses: Pauses) -> None:
    found = source()
    async with listening(pauses, found) as client:
        for message in (
            {"chat_id": 1, "text": "a"},
            {"chat_id": 1, "text": "a"},
            {"chat_id": 1, "text": "a", "message_id": 1},
            {"chat_id": 1, "text": "a", "message_id": "1"},
            {"chat_id": "1", "text": "a", "message_id": 1},
        ):
            assert (await client.post("/message", json=message)).status_code == 202

    assert len(found.births) == 5


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, "invalid_input"),
        (b'{"chat_id": 1}', 400, "invalid_input"),
        (b'{"chat_id": true, "text": "a"}', 400, "invalid_input"),
        (b'{"chat_id": 1, "text": ""}', 400, "invalid_input"),
        (b'{"chat_id": 1, "text": "a", "more": 1}', 400, "invalid_input"),
        (b" " * (1 << 20) + b"{}", 413, "body_too_large"),
    ],
)
async def test_what_is_no_message_is_refused(
    pauses: Pauses, content: bytes, status: int, code: str
) -> None:
    found = source()
    async with listening(pauses, found) as client:
        reply = await client.post("/message", content=content)

    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert found.births == []


async def test_a_token_has_to_be_shown(pauses: Pauses) -> None:
    message = {"chat_id": 1, "text": "a"}
    async with listening(pauses, source(), token="secret") as client:
        without = await client.post("/message", json=message)
        wrong = await client.post("/message", json=message, headers={"Authorization": "Bearer x"})
        right = await client.post(
            "/message", json=message, headers={"Authorization": "Bearer secret"}
        )

    assert [reply.status_code for reply in (without, wrong, right)] == [401, 401, 202]


async def test_without_a_token_only_names_of_this_host_are_served(pauses: Pauses) -> None:
    message = {"chat_id": 1, "text": "a"}
    async with listening(pauses, source()) as client:
        lured = await client.post("/message", json=message, headers={"Host": "evil.example"})
        local = await client.post("/message", json=message, headers={"Host": "localhost:1"})

    assert [lured.status_code, local.status_code] == [421, 202]


@pytest.mark.parametrize("listen", ["0.0.0.0:80", "[::]:80", "example.com:80", "here", "1.2.3.4:x"])
def test_other_hosts_are_listened_to_with_a_token_only(listen: str) -> None:
    with pytest.raises(ValueError, match=r"listen|host:port|token"):
        Proxy.Params(platform="http", listen=listen)


async def test_a_sender_is_held_back_while_too_much_waits(
    pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> str:
        raise Backlogged(waiting=9, limit=8, retry_after_s=3)

    monkeypatch.setattr(RecordingSource, "admit", full)
    async with listening(pauses, source()) as client:
        reply = await client.post("/message", json={"chat_id": 1, "text": "a"})

    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "3")


async def test_a_process_takes_the_port_over_when_the_other_is_gone(pauses: Pauses) -> None:
    found = source()
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        async with proxies.started(pauses, **{**LOCAL, "listen": taken}) as proxy:
            async with running(proxy, found):
                await eventually(lambda: len(pauses.waited) > 2)
                assert address(proxy) is None
                other.close()
                await eventually(lambda: address(proxy) is not None)

    assert [line["event"] for line in found.logged] == ["port_taken", "proxy_listening"]


async def test_an_answer_is_posted_with_a_key_and_the_secret(
    pauses: Pauses, receiver: Receiver
) -> None:
    host = RecordingHost.of("proxy")
    delivery = {"deliver_url": receiver.url, "deliver_token": "d"}
    async with proxies.started(pauses, **LOCAL, **delivery) as proxy:
        assert await proxy.handle(answer("x" * 9000, chat_id="room"), host) == []
        # Handled again, it is not posted again.
        assert await proxy.handle(answer("x" * 9000, chat_id="room"), host) == []

    ((body, headers),) = receiver.taken
    assert body == {"chat_id": "room", "text": "x" * 9000}
    assert headers["Authorization"] == "Bearer d"
    assert headers["Idempotency-Key"]
    assert host.kept[0].hop["parts"] == 1


async def test_a_busy_receiver_is_asked_again_with_the_same_key(
    pauses: Pauses, receiver: Receiver
) -> None:
    receiver.say = [(503, {"Retry-After": "4"}), (429, {})]
    async with proxies.started(pauses, **LOCAL, deliver_url=receiver.url) as proxy:
        assert await proxy.handle(answer("hi", chat_id=1), RecordingHost.of("proxy")) == []

    assert len({headers["Idempotency-Key"] for _, headers in receiver.taken}) == 1
    assert pauses.waited == [4.0, 2.0]


async def test_a_receiver_that_refuses_is_an_error(pauses: Pauses, receiver: Receiver) -> None:
    receiver.say = [(500, {})]
    async with proxies.started(pauses, **LOCAL, deliver_url=receiver.url) as proxy:
        (error,) = await proxy.handle(answer("hi", chat_id=1), RecordingHost.of("proxy"))

    assert error.hop["error_code"] == "send_failed"
    assert "HTTP 500" in str(error.hop["detail"])


async def test_without_a_receiver_an_answer_is_kept(pauses: Pauses) -> None:
    host = RecordingHost.of("proxy")
    async with proxies.started(pauses, **LOCAL) as proxy:
        assert await proxy.handle(answer("hi", chat_id=1), host) == []

    assert len(host.kept) == 1


async def test_a_colony_answers_who_posts_to_it(redis_url: str, receiver: Receiver) -> None:
    params = {**LOCAL, "deliver_url": receiver.url}
    say = {"provider": "scripted", "script": [{"text": "you said so"}]}
    chat: Any = {"set_context": {"chat_id": "hop.chat_id"}}
    spec = TopologySpec(
        cells=(
            CellSpec(path="/room", cell=CellSettings(type="proxy"), params=params),
            CellSpec(path="/echo", cell=CellSettings(type="llm"), params=say),
        ),
        edges=(
            EdgeSpec(source="/room", target="/echo", modifier=chat),
            EdgeSpec(source="/echo", target="/room"),
        ),
    )
    async with Harness(redis_url, spec) as colony:
        proxy = colony.workshop.cells["/room"].cell
        assert isinstance(proxy, Proxy)
        await eventually(lambda: address(proxy) is not None)
        async with httpx.AsyncClient(base_url=address(proxy) or "") as client:
            message = {"chat_id": "room", "text": "hello", "message_id": "m"}
            told = [(await client.post("/message", json=message)).json() for _ in range(2)]
        await colony.finish()
        trace = await colony.trace(told[0]["trace_id"])

    assert told[0] == told[1]
    assert [body for body, _ in receiver.taken] == [{"chat_id": "room", "text": "you said so"}]
    assert (trace.cause, trace.outputs) == ("completed", 1)


async def test_the_port_is_free_when_the_cell_has_stopped(pauses: Pauses) -> None:
    async with listening(pauses, source()) as client:
        port = client.base_url.port
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", port)
