"""Clients: how a trial makes sessions, prompts and answers: by an engine of its own, or by HTTP."""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import httpx

from colony.agent.asks import Verdict
from colony.agent.events import Event
from colony.engine import Engine
from colony.testing.fleet import Process
from tests.faults.agents.tree import AGENT
from tests.faults.trial import HTTP_PATIENCE_S, PATIENCE_S

PROMPT: Final = "Look and change."


class Client(Protocol):
    """Somebody who holds a session."""

    async def make_session(self) -> str:
        """A new session; its id."""

    async def prompt(self, session_id: str) -> str:
        """A run that was begun; its id."""

    async def steer(self, session_id: str, run_id: str) -> None:
        """Say something on the way."""

    async def cancel(self, session_id: str, run_id: str) -> None:
        """End a run."""

    async def resolve(self, session_id: str, asked: Event, verdict: Verdict) -> None:
        """Answer what a run asks."""

    async def copy(self, session_id: str) -> None:
        """Copy the session, and delete the copy."""


class ByEngine:
    """A client with an engine, which nothing happens to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def make_session(self) -> str:
        return (await self._engine.create_session(AGENT)).id

    async def prompt(self, session_id: str) -> str:
        return (await self._engine.run(session_id, PROMPT)).id

    async def steer(self, session_id: str, run_id: str) -> None:
        await self._engine.steer(session_id, "And be short.", run_id=run_id)

    async def cancel(self, session_id: str, run_id: str) -> None:
        await self._engine.cancel(session_id, run_id)

    async def resolve(self, session_id: str, asked: Event, verdict: Verdict) -> None:
        ask_id = str(asked.payload["ask_id"])
        await self._engine.resolve(session_id, asked.run_id, ask_id, verdict)

    async def copy(self, session_id: str) -> None:
        """Nothing: only what goes over the API is to pass by its points."""


class ByHttp:
    """A client of the HTTP interface: what is not answered is asked again, under the same key."""

    def __init__(self, apis: Sequence[Process]) -> None:
        self._apis = apis
        self._keys = itertools.count()

    async def make_session(self) -> str:
        return str((await self._ask("POST", "/v1/sessions", {"agent": AGENT}))["id"])

    async def prompt(self, session_id: str) -> str:
        told = await self._ask("POST", f"/v1/sessions/{session_id}/prompt", {"text": PROMPT})
        return str(told["run_id"])

    async def steer(self, session_id: str, run_id: str) -> None:
        sent = {"text": "And be short.", "run_id": run_id}
        await self._ask("POST", f"/v1/sessions/{session_id}/controls/steer", sent, late=409)

    async def cancel(self, session_id: str, run_id: str) -> None:
        path = f"/v1/sessions/{session_id}/controls/cancel"
        await self._ask("POST", path, {"run_id": run_id})

    async def resolve(self, session_id: str, asked: Event, verdict: Verdict) -> None:
        sent = {"run_id": asked.run_id, "ask_id": asked.payload["ask_id"], "verdict": verdict}
        path = f"/v1/sessions/{session_id}/controls/resolve-ask"
        await self._ask("POST", path, sent, late=409)

    async def copy(self, session_id: str) -> None:
        session = await self._ask("GET", f"/v1/sessions/{session_id}", None)
        sent = {"run_id": session["run_id"], "turn": 0}
        path = f"/v1/sessions/{session_id}/fork"
        copied = await self._ask("POST", path, sent, late=409)
        if "id" in copied:
            await self._ask("DELETE", f"/v1/sessions/{copied['id']}", None, late=404)

    async def _ask(
        self, method: str, path: str, sent: Mapping[str, Any] | None, *, late: int = 0
    ) -> dict[str, Any]:
        headers = {"Idempotency-Key": f"ask-{next(self._keys)}"}
        deadline = time.monotonic() + PATIENCE_S
        for api in itertools.cycle(self._apis):
            if time.monotonic() > deadline:
                raise AssertionError("no API answers")
            if not api.running:
                continue
            await api.serving()
            async with httpx.AsyncClient(timeout=HTTP_PATIENCE_S) as client:
                try:
                    answer = await client.request(
                        method, f"{api.address}{path}", json=sent, headers=headers
                    )
                except httpx.TransportError:
                    continue
            if answer.status_code < 300 or answer.status_code == late:
                return dict(answer.json())
            if answer.status_code < 500:
                raise AssertionError(f"{method} {path}: {answer.text}")
        raise AssertionError("there is no API")
