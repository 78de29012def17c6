"""Asks of runs: which are pending, and how one is answered, once."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgpack import unpackb
from pydantic import JsonValue

from colony.agent.asks import Ask, Decision
from colony.agent.record import SessionRecord
from colony.envelope import digest
from colony.errors import AskNotPending, StaleRunControl
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind
from colony.runs.reading import texts

# How many answers an envelope still waits for.
_OPEN: Final = re.compile(r"group:.*:open")


@dataclass(frozen=True, slots=True)
class PendingAsk:
    """An ask that nobody has answered yet, and the run that waits for it."""

    session_id: str
    run_id: str
    ask: Ask

    def to_json(self) -> dict[str, JsonValue]:
        """The ask as a client is given it."""
        told: dict[str, JsonValue] = self.ask.model_dump(mode="json")
        of = {"session_id": self.session_id, "run_id": self.run_id, "ask_id": told.pop("id")}
        return {**of, **told}


class RunAsks:
    """The asks of the runs of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def pending(self) -> list[PendingAsk]:
        """The asks that wait, those that are due first first."""
        members = await self.link.command("ZRANGE", self.keys.ask_deadlines(), 0, -1)
        named = [member.decode().split(" ") for member in members]
        found = [await self.find(run, ask, session) for session, run, ask in named]
        return [ask for ask in found if ask is not None]

    async def pending_of(self, session: SessionRecord) -> list[PendingAsk]:
        """The asks that a session waits for, those that are due first first."""
        if not session.pending:
            return []
        kept = texts(await self.link.command("HGETALL", self.keys.asks(session.run_id)))
        asks = [
            _ask(json.loads(facts))
            for name, facts in kept.items()
            if ":" not in name and f"{name}:decision" not in kept
        ]
        return [
            PendingAsk(session.id, session.run_id, ask)
            for ask in sorted(asks, key=lambda ask: ask.deadline)
        ]

    async def parked(self, *, server: str) -> Counter[str]:
        """How many envelopes wait for answers, by run.

        Raises ServerChanged where another server is there.
        """
        members = await self.link.command("ZRANGE", self.keys.ask_deadlines(), 0, -1, server=server)
        found: Counter[str] = Counter()
        for run_id in {member.decode().split(" ")[1] for member in members}:
            kept = texts(await self.link.command("HGETALL", self.keys.asks(run_id), server=server))
            found[run_id] = sum(
                int(waiting) > 0 for name, waiting in kept.items() if _OPEN.fullmatch(name)
            )
        return found

    async def due(self, now_ms: int, limit: int) -> list[tuple[str, str, str]]:
        """Session, run and id of asks whose deadline has passed."""
        members = await self.link.command(
            "ZRANGE", self.keys.ask_deadlines(), "-inf", now_ms, "BYSCORE", "LIMIT", 0, limit
        )
        return [tuple(member.decode().split(" ", 2)) for member in members]

    async def find(self, run_id: str, ask_id: str, session_id: str) -> PendingAsk | None:
        """An ask of a run, answered or not; None where the run never asked it."""
        facts = await self.link.command("HGET", self.keys.asks(run_id), ask_id)
        if facts is None:
            return None
        return PendingAsk(session_id, run_id, _ask(json.loads(facts)))

    async def decide(
        self, asked: PendingAsk, decision: Decision, *, token: str, rule: str = ""
    ) -> Decision:
        """The answer that counts: this one, or the first under the same token.

        It names what is approved by the digest of the arguments, its own or those of the ask.

        Raises AskNotPending where another one came first, StaleRunControl where the run has ended.
        """
        run_id, session_id, ask = asked.run_id, asked.session_id, asked.ask
        approved = ask.args_hash if decision.args is None else digest(decision.args)
        decision = decision.model_copy(update={"args_hash": approved})
        call = bind(
            "resolve_ask",
            trace=self.keys.trace(run_id),
            run=self.keys.run(run_id),
            session=self.keys.agent_session(session_id),
            events=self.keys.session_events(session_id),
            asks=self.keys.asks(run_id),
            pending=self.keys.ask_deadlines(),
            stream=await self._stream(run_id, ask.id),
            run_id=run_id,
            session_id=session_id,
            ask_id=ask.id,
            token=token,
            decision=decision.model_dump_json(),
            kind=_event(decision),
            payload=json.dumps(_told(ask, decision)),
            rule=rule,
            channel=self.keys.session_live(session_id),
        )
        answer = await self.link.run(call)
        if answer[0] == b"stale":
            raise StaleRunControl(session_id=session_id)
        if answer[0] == b"not_pending":
            raise AskNotPending(ask_id=ask.id)
        if answer[0] == b"repeated":
            return Decision.model_validate_json(answer[1])
        return decision

    async def _stream(self, run_id: str, ask_id: str) -> str:
        """Where the envelope goes that waits for an ask; that of no cell where none does."""
        asks = self.keys.asks(run_id)
        facts = await self.link.command("HGET", asks, ask_id)
        group = json.loads(facts)["group"] if facts else ""
        parked = await self.link.command("HGET", asks, f"group:{group}:parked")
        return str(unpackb(parked, raw=True)[0].decode()) if parked else self.keys.router()


def _ask(facts: dict[str, Any]) -> Ask:
    return Ask.model_validate({name: facts[name] for name in Ask.model_fields if name in facts})


def _event(decision: Decision) -> Literal["approval", "permission.expired"]:
    return "permission.expired" if decision.by == "deadline" else "approval"


def _told(ask: Ask, decision: Decision) -> dict[str, JsonValue]:
    named: dict[str, JsonValue] = {"ask_id": ask.id, "call_id": ask.call_id, "tool": ask.tool}
    if decision.by == "deadline":
        return named
    return {
        **named,
        "verdict": decision.verdict,
        "learned": decision.learned,
        "reason": decision.reason,
        "actor": decision.actor,
        "args_hash": decision.args_hash,
    }
