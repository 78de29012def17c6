"""What a client of the agents over HTTP does: it makes sessions, prompts, and reads streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from colony.api.server import Server
from colony.engine import Engine
from colony.testing.harness import Harness

SOON_S = 20.0


@dataclass(frozen=True)
class Told:
    """One server-sent event."""

    data: Mapping[str, Any]
    event: str = "message"
    id: str | None = None


@dataclass
class Served:
    """An agent that is served, stepped by whoever tries it."""

    harness: Harness
    engine: Engine
    server: Server
    http: httpx.AsyncClient

    async def session(self, **wanted: Any) -> str:
        """A new session; its id."""
        made = await self.http.post("/v1/sessions", json={"agent": "assistant", **wanted})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def prompted(self, session_id: str, text: str = "Go.", **wanted: Any) -> str:
        """A run that was begun; its id."""
        begun = await self.post(session_id, "prompt", text=text, **wanted)
        assert begun.status_code == 202, begun.text
        return str(begun.json()["run_id"])

    async def ran(self, session_id: str, text: str = "Go.") -> str:
        """A run that has come to where nothing moves any more; its id."""
        run_id = await self.prompted(session_id, text)
        await self.harness.finish()
        return run_id

    async def post(self, session_id: str, what: str, **wanted: Any) -> httpx.Response:
        """What a call about a session is answered with."""
        return await self.http.post(f"/v1/sessions/{session_id}/{what}", json=wanted)

    async def ask(self, session_id: str) -> Mapping[str, Any]:
        """The one ask that a session waits for."""
        found = await self.http.get(f"/v1/sessions/{session_id}")
        (ask,) = found.json()["asks"]
        return dict(ask)

    async def events(self, session_id: str, **query: Any) -> list[Told]:
        """What a stream of a session tells that ends by itself."""
        async with self.stream(session_id, **query) as told, asyncio.timeout(SOON_S):
            return [event async for event in told]

    @asynccontextmanager
    async def stream(
        self, session_id: str, *, seen: str | None = None, **query: Any
    ) -> AsyncIterator[AsyncIterator[Told]]:
        """A stream of a session, behind the last event that was seen."""
        headers = {} if seen is None else {"Last-Event-ID": seen}
        path = f"/v1/sessions/{session_id}/events"
        async with self.http.stream("GET", path, params=query, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield told(response)


async def told(response: httpx.Response) -> AsyncIterator[Told]:
    """The events of a stream, without its comments."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif not line and "data" in fields:
            yield Told(json.loads(fields["data"]), fields.get("event", "message"), fields.get("id"))
            fields = {}
        elif not line:
            fields = {}
