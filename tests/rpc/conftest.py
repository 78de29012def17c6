"""A stepped colony with an agent, the gRPC interface on a socket, and a channel to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from colony.engine import Engine
from colony.principals import Principals, line_of
from colony.rpc.agents_pb2_grpc import AgentsStub
from colony.rpc.server import RpcServer
from colony.testing.harness import Harness
from tests.colonies.agent_colony import engine_beside

SOON_S = 20


@dataclass
class Reached:
    """An agent that is reached over gRPC, stepped by whoever tries it."""

    harness: Harness
    engine: Engine
    server: RpcServer
    agents: AgentsStub


Reach = Callable[..., Awaitable[Reached]]


@pytest.fixture
async def reach(redis_url: str, tmp_path: Path) -> AsyncIterator[Reach]:
    """Reaches an agent with these values for its template; `owners` have tokens of their names."""
    async with AsyncExitStack() as stack:

        async def reach(*, owners: tuple[str, ...] = (), **handed: Any) -> Reached:
            lines = [line_of(name, name, operator=False) for name in owners]
            tokens = tmp_path / "tokens"
            tokens.write_text("\n".join(lines))
            harness, engine = await stack.enter_async_context(
                engine_beside(redis_url, tmp_path / "tree", **handed)
            )
            server = RpcServer(
                redis_url,
                harness.keys.name,
                host="127.0.0.1",
                port=0,
                principals=Principals(file=tokens if owners else None),
            )
            serving = asyncio.create_task(server.serve())
            stack.push_async_callback(_stopped, server, serving)
            async with asyncio.timeout(SOON_S):
                await server.bound()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
            return Reached(harness, engine, server, AgentsStub(channel))

        yield reach


async def _stopped(server: RpcServer, serving: "asyncio.Task[None]") -> None:
    server.stop()
    await serving
