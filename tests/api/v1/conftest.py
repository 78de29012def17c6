"""A stepped colony with an agent, the HTTP interface on a socket, and clients of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from colony.api.server import Server
from colony.principals import Principals, line_of
from tests.api.v1.served import Served
from tests.colonies.agent_colony import engine_beside

Serve = Callable[..., Awaitable[Served]]

TOKENS = {"ann": "clny_ann", "bob": "clny_bob", "ops": "clny_ops"}


@pytest.fixture
async def serve(redis_url: str, tmp_path: Path) -> AsyncIterator[Serve]:
    """Serves an agent with these values for its template; with `owners` only to who has a token."""
    async with AsyncExitStack() as stack:

        async def serve(*, owners: bool = False, **handed: Any) -> Served:
            tokens = None
            if owners:
                lines = [
                    line_of(name, token, operator=name == "ops") for name, token in TOKENS.items()
                ]
                tokens = tmp_path / "tokens"
                tokens.write_text("\n".join(lines))
            harness, engine = await stack.enter_async_context(
                engine_beside(redis_url, tmp_path / "tree", **handed)
            )
            server = Server(
                redis_url,
                harness.keys.name,
                host="127.0.0.1",
                port=0,
                principals=Principals(file=tokens),
            )
            serving = asyncio.create_task(server.serve())
            stack.push_async_callback(_stopped, server, serving)
            http = await stack.enter_async_context(
                httpx.AsyncClient(base_url=server.address, timeout=30)
            )
            return Served(harness, engine, server, http)

        yield serve


async def _stopped(server: Server, serving: "asyncio.Task[None]") -> None:
    server.stop()
    await serving
