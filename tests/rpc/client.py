"""A client of agents over gRPC, and all that it is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from colony.rpc import agents_pb2 as pb
from tests.rpc.conftest import Reached

OPEN = pb.ClientMessage(id="open", open=pb.Open(agent="assistant"))


def opening(session_id: str, cursor: str = "") -> pb.ClientMessage:
    """The first message of who goes on with a session."""
    return pb.ClientMessage(id="open", open=pb.Open(session_id=session_id, cursor=cursor))


class Client:
    """One call of a client, and all that it was told."""

    def __init__(self, reached: Reached, call: Any) -> None:
        self.reached = reached
        self.call = call
        self.told: list[pb.ServerMessage] = []

    async def say(self, **kind: Any) -> None:
        """Say something; the id of the message is its kind."""
        (name,) = kind
        await self.call.write(pb.ClientMessage(id=name, **kind))

    async def until(self, kind: str, name: str = "") -> Any:
        """What is told of that kind: an event by its name, an answer by the message it is to."""
        async with asyncio.timeout(20):
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.told.append(message)
                found = getattr(message, kind)
                named = found.kind if kind == "event" else getattr(found, "id", "")
                if message.WhichOneof("kind") == kind and name in ("", named):
                    return found
        raise AssertionError(f"no {kind} {name} in {self.told}")

    async def rest(self) -> list[Any]:
        """The events that are told until the call ends."""
        async with asyncio.timeout(20):
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.told.append(message)
        return [m.event for m in self.told if m.WhichOneof("kind") == "event"]

    async def run(self) -> str:
        """A run that was begun, and is not stepped yet; its id."""
        await self.say(prompt=pb.Prompt(text="Go."))
        return str((await self.until("accepted", "prompt")).run_id)

    async def asked(self) -> Any:
        """What the run asks for."""
        await self.reached.harness.finish()
        return json.loads((await self.until("event", "permission.ask")).payload_json)


@asynccontextmanager
async def talking(
    reached: Reached, opened: pb.ClientMessage = OPEN, token: str | None = None
) -> AsyncIterator[Client]:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    call = reached.agents.Converse(metadata=metadata)
    await call.write(opened)
    try:
        yield Client(reached, call)
    finally:
        call.cancel()


async def fails(client: Client, status: grpc.StatusCode, code: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.rest()
    assert failed.value.code() is status
    assert dict(failed.value.trailing_metadata() or ())["colony-code"] == code
