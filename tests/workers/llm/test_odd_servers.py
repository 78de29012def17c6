"""Both protocols against servers that send their bytes in ways that no framework would."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from colony.body import Entry
from colony.testing.messages_server import events
from colony.testing.streamed import events_of
from workers.llm.asking.listening import Nobody
from workers.llm.provider import Answer, Failure, Generation, Reply, Request
from workers.llm.servers.anthropic_messages import AnthropicMessages
from workers.llm.servers.bounded_client import Patience
from workers.llm.servers.chat_completions import ChatCompletions

REQUEST = Request(
    entries=(Entry.say("user", "What is it?"),),
    system=None,
    tools=(),
    generation=Generation(model="m"),
    seed="s",
)
COMPLETION = {
    "id": "c",
    "created": 0,
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "blue sky"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
MESSAGE = {
    "id": "c",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "blue sky"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


@dataclass
class Server:
    """A server that sends the same bytes for every request, and then closes or goes on."""

    sent: bytes
    keeps_open: bool = False
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answered(reader, writer) and self.keeps_open:
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self.sent)
        await writer.drain()
        return True


def response(body: bytes, *, status: str = "200 OK", **headers: Any) -> bytes:
    given = {"content-type": b"application/json", "content-length": len(body), **headers}
    lines = [f"HTTP/1.1 {status}".encode()]
    for name, value in given.items():
        text = value if isinstance(value, bytes) else str(value).encode()
        lines.append(name.replace("_", "-").encode() + b": " + text)
    return b"\r\n".join([*lines, b"", body])


def chunked(text: str) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + f"{len(text):x}\r\n{text}\r\n0\r\n\r\n".encode()


def told(event: Any) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


STREAMED = {
    ChatCompletions: chunked("".join(events_of(COMPLETION, counted=True))),
    AnthropicMessages: chunked("".join(map(told, events(MESSAGE)))),
}
WHOLE = {
    ChatCompletions: response(json.dumps(COMPLETION).encode()),
    AnthropicMessages: response(json.dumps(MESSAGE).encode()),
}
PATIENT = Patience(first_byte_s=30, idle_s=30)
PROTOCOLS = pytest.mark.parametrize("protocol", [ChatCompletions, AnthropicMessages])
FORMS = pytest.mark.parametrize("patience", [PATIENT, None], ids=["streamed", "whole"])

Ask = Callable[[], Any]


@asynccontextmanager
async def asking(server: Server, protocol: Any, patience: Patience | None) -> AsyncIterator[Ask]:
    """What asks the server with one client."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    origin = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    provider = protocol(api_key="k", base_url=origin, headers={}, timeout_s=30, patience=patience)
    try:
        yield lambda: provider.complete(REQUEST, Nobody())
    finally:
        await provider.close()
        listening.close()


async def asked(server: Server, protocol: Any, patience: Patience | None) -> Reply:
    async with asking(server, protocol, patience) as ask:
        reply: Reply = await ask()
    return reply


@PROTOCOLS
@FORMS
async def test_a_connection_may_break_after_any_byte(
    protocol: Any, patience: Patience | None
) -> None:
    sent = (STREAMED if patience else WHOLE)[protocol]
    server = Server(sent)
    async with asking(server, protocol, patience) as ask:
        for length in range(len(sent)):
            server.sent = sent[:length]
            reply = await ask()
            if isinstance(reply, Answer):
                assert patience is not None
                assert (reply.text, reply.finish_reason) == ("blue sky", "stop")
            else:
                assert (reply.code, reply.disposition) == ("provider_error", "retryable")
        server.sent = sent
        assert (await ask()).text == "blue sky"


@PROTOCOLS
@FORMS
async def test_connections_that_the_server_closes_between_calls_are_opened_again(
    protocol: Any, patience: Patience | None
) -> None:
    server = Server((STREAMED if patience else WHOLE)[protocol])
    async with asking(server, protocol, patience) as ask:
        replies = [await ask() for _ in range(5)]

    assert [reply.text for reply in replies] == ["blue sky"] * 5
    assert server.connections == 5


@PROTOCOLS
@FORMS
async def test_a_connection_that_the_server_keeps_serves_the_calls_that_follow(
    protocol: Any, patience: Patience | None
) -> None:
    server = Server((STREAMED if patience else WHOLE)[protocol], keeps_open=True)
    async with asking(server, protocol, patience) as ask:
        replies = [await ask() for _ in range(5)]

    assert [reply.text for reply in replies] == ["blue sky"] * 5
    assert server.connections == 1


@PROTOCOLS
async def test_a_stream_that_is_not_ended_after_its_answer_is_not_waited_for(protocol: Any) -> None:
    server = Server(STREAMED[protocol].removesuffix(b"0\r\n\r\n"), keeps_open=True)

    reply = await asked(server, protocol, PATIENT)

    assert isinstance(reply, Answer)
    assert (reply.text, reply.warnings) == ("blue sky", ())


@PROTOCOLS
@FORMS
async def test_a_header_that_is_no_text_does_not_hide_what_was_refused(
    protocol: Any, patience: Patience | None
) -> None:
    refusal = response(b"{}", status="429 Too Many Requests", retry_after=b"\xff\xfe")

    reply = await asked(Server(refusal), protocol, patience)

    assert isinstance(reply, Failure)
    assert (reply.code, reply.retry_after_s) == ("rate_limited", None)


@PROTOCOLS
@FORMS
async def test_a_server_that_sends_its_callers_round_in_circles_is_not_asked_again(
    protocol: Any, patience: Patience | None
) -> None:
    circle = response(b"", status="307 Temporary Redirect", location="/again")

    reply = await asked(Server(circle, keeps_open=True), protocol, patience)

    assert isinstance(reply, Failure)
    assert (reply.kind, reply.disposition) == ("connection", "unknown")


@PROTOCOLS
@FORMS
@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed"])
@pytest.mark.parametrize("body", [b"", b"Not Found", b'{"detail": "Not Found"}', b"{}"])
async def test_a_path_that_the_server_does_not_know_is_named(
    protocol: Any, patience: Patience | None, status: str, body: bytes
) -> None:
    server = Server(response(body, status=status))

    reply = await asked(server, protocol, patience)

    assert isinstance(reply, Failure)
    path = server.requests[0].split()[1].decode()
    assert reply.detail.startswith("POST http://127.0.0.1:")
    assert f"{path} is answered with " in reply.detail


@PROTOCOLS
async def test_a_model_that_the_server_does_not_know_is_told_in_its_words(protocol: Any) -> None:
    body = b'{"error": {"type": "not_found_error", "message": "no model m"}}'

    reply = await asked(Server(response(body, status="404 Not Found")), protocol, PATIENT)

    assert isinstance(reply, Failure)
    assert (reply.code, reply.detail) == ("model_not_found", "no model m")
