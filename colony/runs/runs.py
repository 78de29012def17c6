"""Runs: how a run of a session begins, is told things on its way, and ends from outside."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import JsonValue

from colony.agent.record import Limits, RunKind, RunRecord, SessionRecord
from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import encode_body, encode_head
from colony.envelope import Head, derived_id, digest, is_id, new_id
from colony.errors import (
    BlobUnavailable,
    ColonyError,
    GuardReused,
    RetryIneligible,
    RetryPending,
    SessionAwaiting,
    SessionBusy,
    SessionNotFound,
    StaleRunControl,
    TraceNotFound,
)
from colony.keys import Keys
from colony.link import Link
from colony.lua.packing import pack
from colony.lua.registry import bind
from colony.paths import ROOT, resolve
from colony.runs.ending import end_run
from colony.runs.reading import texts
from colony.runs.sessions import listed
from colony.topology.model import DEFAULTS

AGAIN: Final = {
    "precommit": "the last step is made again; nothing of it had been shown",
    "visible": "the last step is made again; what had been shown of it is superseded",
}

_REFUSED: Final[dict[bytes, type[ColonyError]]] = {
    b"missing": SessionNotFound,
    b"busy": SessionBusy,
    b"awaiting": SessionAwaiting,
    b"retry_pending": RetryPending,
    b"ineligible": RetryIneligible,
    b"conflict": GuardReused,
}


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that was begun, now or by an earlier request under the same guard."""

    run_id: str
    repeated: bool


class Runs:
    """The runs of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def begin(
        self,
        session: SessionRecord,
        kind: RunKind,
        entries: Sequence[Entry] = (),
        *,
        limits: Limits | None = None,
        guard: str | None = None,
        ttl: int = DEFAULTS.message_default_ttl,
        timeout_ms: int = 0,
        guard_keep_ms: int = DEFAULTS.idempotency_retention_ms,
        session_keep_ms: int = DEFAULTS.session_retention_ms,
    ) -> Begun:
        """Open a run of a session with its first envelope, which goes to the agent's hive.

        The session is kept for `session_keep_ms` behind the end of the run.

        Under a `guard` the same request is answered with the run that it opened first. Raises the
        error of whatever keeps the session from running, with nothing changed.
        """
        bounds = limits or session.limits
        guarded = None if guard is None else f"{session.id}:{guard}"
        run_id = new_id() if guarded is None else derived_id("run", guarded)
        hive = resolve(session.agent, ROOT)
        head = Head(
            id=run_id,
            trace_id=run_id,
            target=hive,
            ttl=ttl,
            context={"session_id": session.id, "turn_id": run_id, "iter": 0},
            hop={"route": "begin", "kind": kind},
            session=session.id,
        )
        body = Body(messages=tuple(entries))
        travelling, blob = await Blobs(self.link, self.keys).admit(encode_body(body), run_id)
        fields = {
            "agent": session.agent,
            "limits": bounds.model_dump_json(exclude_unset=True),
            "model": session.model,
            "keep_ms": str(session_keep_ms),
        }
        init = {"agent": session.agent, "session_id": session.id, "kind": kind}
        request: JsonValue = [session.id, kind, body.to_json(), bounds.model_dump()]
        call = bind(
            "begin_run",
            guard=self.keys.guard(guarded or run_id),
            trace=self.keys.trace(run_id),
            open=self.keys.open_traces(),
            deadlines=self.keys.deadlines(),
            stream=self.keys.router(),
            belongings=self.keys.belongings(run_id),
            run=self.keys.run(run_id),
            session=self.keys.agent_session(session.id),
            events=self.keys.session_events(session.id),
            history=self.keys.history(session.id),
            steers=self.keys.steers(session.id),
            sessions=self.keys.agent_sessions(""),
            owned=self.keys.agent_sessions(digest(session.owner)),
            blobs=[] if blob is None else [self.keys.blob(blob)],
            trace_id=run_id,
            digest=digest(request),
            keep_ms=guard_keep_ms if guarded is not None else 0,
            head=encode_head(head),
            body=travelling,
            entry=hive,
            timeout_ms=timeout_ms,
            session_id=session.id,
            kind=kind,
            fields=pack([*map(list, fields.items())]),
            init=json.dumps(init),
            again=pack(
                {
                    progress: json.dumps(
                        {"disposition": "retryable", "progress": progress, "text": text}
                    )
                    for progress, text in AGAIN.items()
                }
            ),
            channel=self.keys.session_live(session.id),
            log_ms=session_keep_ms,
            listed=listed(session.id, session.owner),
        )
        answer = await self.link.run(call)
        if answer[0] == b"blob_lost":
            raise BlobUnavailable(blob_id=blob)
        if answer[0] in _REFUSED:
            raise _REFUSED[answer[0]](session_id=session.id, trace_id=run_id)
        return Begun(answer[1].decode(), answer[0] == b"repeated")

    async def get(self, run_id: str) -> RunRecord:
        """The record of a run; raises TraceNotFound where there is none."""
        fields = await self.link.command("HGETALL", self.keys.run(run_id))
        if not fields:
            raise TraceNotFound(trace_id=run_id)
        return RunRecord.read(run_id, texts(fields))

    async def steer(self, session_id: str, text: str, *, run_id: str = "", token: str) -> str:
        """Have a run take up what a person says at its next boundary; returns the id of the run.

        Raises StaleRunControl where `run_id` is not under way, or nothing is.
        """
        call = bind(
            "steer_run",
            session=self.keys.agent_session(session_id),
            steers=self.keys.steers(session_id),
            run_id=run_id,
            text=text,
            token=token,
        )
        answer = await self.link.run(call)
        if answer[0] == b"missing":
            raise SessionNotFound(session_id=session_id)
        if answer[0] == b"stale":
            raise StaleRunControl(session_id=session_id)
        return str(answer[1].decode())

    async def end(
        self,
        run_id: str,
        session_id: str,
        *,
        cause: Literal["cancelled", "failed"],
        reason: str,
    ) -> bool:
        """End a run whatever it has under way; False where it had ended before.

        Raises StaleRunControl where the session has no such run.
        """
        if not is_id(run_id):
            raise StaleRunControl(session_id=session_id)
        answer = await end_run(self.link, self.keys, run_id, session_id, cause=cause, reason=reason)
        if answer[0] == b"unknown":
            raise StaleRunControl(session_id=session_id)
        return bool(answer[0] == b"ended")
