"""Traces: how they are born, what is known of them, how they end from outside."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import JsonValue

from colony.blobs import DEFAULT_INLINE_MAX_BYTES, Blobs
from colony.body import Body
from colony.codec import encode_body, encode_head, pack, unpack
from colony.envelope import EXTERNAL, Head, Headers, derived_id, digest, new_id, session_of
from colony.errors import BlobUnavailable, Fenced, RecordBroken, TraceNotFound
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import Argument, bind
from colony.records import HopRecord, read_record
from colony.runs.ending import end_run
from colony.topology.model import DEFAULTS

LOG_PAGE: Final = 1000

State = Literal["open", "quiet", "ended"]
Cause = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Trace:
    """The record of a trace. Times are in milliseconds since the epoch.

    `live` counts the envelopes under way; `outputs` the messages kept; `dead` the dead letters, of
    which the quiet lane was `told`.
    """

    id: str
    state: State
    cause: Cause | None
    reason: str | None
    live: int
    outputs: int
    dead: int
    revivals: int
    told: int
    created_at: int
    ended_at: int | None
    entry: str
    session: str | None
    replayed_from: str | None
    error_code: str | None
    dead_target: str | None
    dead_message_id: str | None
    dead_head: bytes | None
    last: bytes | None
    agent_session: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it, but for what a completed one has under way."""
        return self.state == "ended"

    def to_json(self) -> dict[str, JsonValue]:
        """What an operator or client is told."""
        shown = ("state", "cause", "reason", "live", "outputs", "dead", "revivals", "created_at",
                 "ended_at", "entry", "session", "replayed_from", "error_code")  # fmt: skip
        return {"trace_id": self.id, **{name: getattr(self, name) for name in shown}}


@dataclass(frozen=True, slots=True)
class Birth:
    """An admission: the trace, and whether an earlier one under the same guard was found."""

    trace_id: str
    repeated: bool
    conflict: bool = False


class Traces:
    """The traces of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def birth(
        self,
        target: str | None,
        body: Body,
        *,
        ttl: int,
        sender: str = EXTERNAL,
        context: Headers | None = None,
        hop: Headers | None = None,
        guard: str | None = None,
        trace_id: str | None = None,
        timeout_ms: int = 0,
        inline_max_bytes: int = DEFAULT_INLINE_MAX_BYTES,
        guard_keep_ms: int = DEFAULTS.idempotency_retention_ms,
        request: JsonValue = None,
    ) -> Birth:
        """Admit a message: open a trace with its first envelope.

        A body of `inline_max_bytes` or more is put under a blob key first. The trace id is derived
        from `guard`; without one it is `trace_id`, made once per attempt, which is then the guard
        itself. Repeating an attempt opens nothing and finds the trace. A guard is remembered for
        `guard_keep_ms`, and found as long as its trace. It serves one `request`, which is what is
        admitted where nothing else is given. Without a `target` it goes where the edges of its
        `sender` lead. Where its context names a session it gets the last place in that.
        """
        session = session_of(context or {})
        born = derived_id("guard", guard) if guard is not None else trace_id or new_id()
        head = Head(
            id=born,
            trace_id=born,
            sender=sender,
            target=target,
            ttl=ttl,
            context=context or {},
            hop=hop or {},
        )
        # Before the digest: what cannot be encoded is refused here, with its reason.
        encoded = encode_head(head), encode_body(body)
        blobs = Blobs(self.link, self.keys, inline_max_bytes=inline_max_bytes)
        travelling, blob = await blobs.admit(encoded[1], born)
        if request is None:
            request = [target, body.to_json(), context or {}, hop or {}, ttl, timeout_ms]
        call = bind(
            "birth",
            guard=self.keys.guard(guard if guard is not None else born),
            trace=self.keys.trace(born),
            open=self.keys.open_traces(),
            deadlines=self.keys.deadlines(),
            stream=self.keys.router(),
            belongings=self.keys.belongings(born),
            order=self.keys.order(digest(session)),
            blobs=[] if blob is None else [self.keys.blob(blob)],
            trace_id=born,
            digest=digest(request),
            keep_ms=guard_keep_ms if guard is not None else 0,
            head=encoded[0],
            body=travelling,
            entry=sender if target is None else target,
            session=session,
            timeout_ms=timeout_ms,
        )
        answer = await self.link.run(call)
        token = answer[0]
        if token == b"blob_lost":
            raise BlobUnavailable(blob_id=blob)
        return Birth(answer[1].decode(), token == b"repeated", token == b"conflict")

    async def knows(self, guard: str) -> bool:
        """Whether a birth under `guard` would find the trace of an earlier one."""
        keys = self.keys.guard(guard), self.keys.trace(derived_id("guard", guard))
        return bool(await self.link.command("EXISTS", *keys))

    async def get(self, trace_id: str) -> Trace:
        """The record; raises TraceNotFound where there is none, RecordBroken where it is none."""
        fields = await self.link.command("HGETALL", self.keys.trace(trace_id))
        if not fields:
            raise TraceNotFound(trace_id=trace_id)
        try:
            return _read(trace_id, dict(zip(fields[::2], fields[1::2], strict=True)))
        except ValueError as error:
            raise RecordBroken(trace_id=trace_id, detail=str(error)) from None

    async def fenced(self, trace_id: str, *, server: str | None = None) -> bool:
        """Whether work for the trace is dropped.

        So it is where the trace ended, unless it completed and has envelopes under way, and where
        it is gone. What is retired takes nothing more that would have to expire with it.
        """
        state, cause, live = await self.link.command(
            "HMGET", self.keys.trace(trace_id), "state", "cause", "live", server=server
        )
        return state is None or (state == b"ended" and (cause != b"completed" or live == b"0"))

    async def end(self, trace_id: str, cause: Literal["cancelled", "failed"], reason: str) -> Cause:
        """End a trace and fence what it has under way; returns the cause of its first end.

        What it has parked is dropped, and the next trace of its session has its turn. Raises
        TraceNotFound where there is no such trace.
        """
        answer = await self._end_by_hand(trace_id, "", cause=cause, reason=reason)
        if answer[0] == b"run":
            session_id = answer[1].decode()
            answer = await self._end_run(trace_id, session_id, cause=cause, reason=reason)
        if answer[0] == b"unknown":
            raise TraceNotFound(trace_id=trace_id)
        return answer[1].decode() if answer[0] == b"before" else cause

    async def end_quiet(self, trace_id: str, session: str | None) -> None:
        """End a trace of a session that is quiet and stays so; nothing where it is not any more.

        One that drives a session of an agent has failed: it should have ended by itself.
        """
        answer = await self._end("end_quiet", trace_id, session or "")
        if answer[0] == b"run":
            await self._end_run(
                trace_id, answer[1].decode(), cause="failed", reason="", only_quiet=True
            )

    async def leave(self, trace_id: str, session: str, *, server: str) -> None:
        """Give up the place of a trace that has ended or is gone: the next one has its turn."""
        await self._end_by_hand(trace_id, session, cause="failed", reason="gone", server=server)

    async def _end_by_hand(
        self, trace_id: str, session: str, *, cause: str, reason: str, server: str | None = None
    ) -> Any:
        quiet = self.keys.quiet()
        given = {"quiet": quiet, "cause": cause, "reason": reason}
        return await self._end("end_trace", trace_id, session, server=server, **given)

    async def _end_run(
        self,
        run_id: str,
        session_id: str,
        *,
        cause: Literal["cancelled", "failed"],
        reason: str,
        only_quiet: bool = False,
    ) -> Any:
        return await end_run(
            self.link,
            self.keys,
            run_id,
            session_id,
            cause=cause,
            reason=reason,
            only_quiet=only_quiet,
        )

    async def _end(
        self,
        script: str,
        trace_id: str,
        session: str,
        *,
        server: str | None = None,
        **given: Argument,
    ) -> Any:
        """The answer of a script that ends a trace, which may be of another session than given."""
        while True:
            call = bind(
                script,
                trace=self.keys.trace(trace_id),
                open=self.keys.open_traces(),
                ended=self.keys.ended_traces(),
                deadlines=self.keys.deadlines(),
                order=self.keys.order(digest(session)),
                parked=self.keys.parked(),
                waiting=self.keys.waiting(),
                router=self.keys.router(),
                trace_id=trace_id,
                session=session,
                **given,
            )
            answer = await self.link.run(call, server=server)
            if answer[0] != b"elsewhere":
                return answer
            session = answer[1].decode()

    async def retire(self, trace_id: str, *, keep_ms: int) -> bool:
        """Let everything that belongs to a trace expire after `keep_ms`, if nothing can come of it.

        Whether it does, or is gone already. What expires already keeps its time.
        """
        belongings = await self.link.command("SMEMBERS", self.keys.belongings(trace_id))
        call = bind(
            "retire",
            trace=self.keys.trace(trace_id),
            keys=[
                self.keys.log(trace_id),
                self.keys.outputs(trace_id),
                self.keys.receipts(trace_id),
                self.keys.journal(trace_id),
                self.keys.attempts(trace_id),
                self.keys.requests(trace_id),
                self.keys.run(trace_id),
                self.keys.asks(trace_id),
                self.keys.belongings(trace_id),
                *belongings,
            ],
            keep_ms=keep_ms,
        )
        answer = await self.link.run(call)
        return bool(answer[0] != b"living")

    async def log(self, trace_id: str, *, after: str = "-") -> list[HopRecord]:
        """The hop records of a trace in the order they were written."""
        records: list[HopRecord] = []
        while True:
            page = await self.link.command(
                "XRANGE", self.keys.log(trace_id), after, "+", "COUNT", LOG_PAGE
            )
            records += [read_record(entry, fields[1]) for entry, fields in page]
            if len(page) < LOG_PAGE:
                return records
            after = "(" + page[-1][0].decode()

    async def outputs(self, trace_id: str) -> list[dict[str, JsonValue]]:
        """The messages kept as outputs: hop and body of each, in the order they came."""
        kept = await self.link.command("LRANGE", self.keys.outputs(trace_id), 0, -1)
        return [read_output(data) for data in kept]

    async def attempt(self, trace_id: str, envelope_id: str, *, token: str, server: str) -> int:
        """Count that a redelivered envelope is about to be handled; raises Fenced if it must not.

        `token` is made once per handle: repeating the call with it counts nothing more. It begins
        with the server and a slash: a handle that was broken off by a change of server counts no
        longer.
        """
        call = bind(
            "attempt",
            trace=self.keys.trace(trace_id),
            attempts=self.keys.attempts(trace_id),
            envelope=envelope_id,
            token=token,
        )
        answer = await self.link.run(call, server=server)
        if answer[0] == b"fenced":
            raise Fenced(trace_id=trace_id)
        return int(answer[1])

    async def ids(self, which: Literal["open", "ended"], *, limit: int) -> list[str]:
        """Trace ids, newest first."""
        key = self.keys.open_traces() if which == "open" else self.keys.ended_traces()
        return [i.decode() for i in await self.link.command("ZREVRANGE", key, 0, limit - 1)]


def write_output(body: Body, hop: Mapping[str, JsonValue], path: str) -> bytes:
    """A message kept as an output, as the list of its trace keeps it."""
    return pack({"path": path, "hop": dict(hop), "body": body.to_json()})


def read_output(data: bytes) -> dict[str, JsonValue]:
    """The output that `data` holds: path of the cell that kept it, hop and body."""
    output = unpack(data)
    return output  # type: ignore[no-any-return]


def error_of(output: Mapping[str, JsonValue]) -> str | None:
    """Why an output is no answer: the code in its hop, and what `meta.error` of its body tells."""
    hop, body = output.get("hop"), output.get("body")
    code = hop.get("error_code") if isinstance(hop, dict) else None
    meta = body.get("meta") if isinstance(body, dict) else None
    error = meta.get("error") if isinstance(meta, dict) else None
    detail = error.get("detail") if isinstance(error, dict) else None
    if code is None:
        return None
    return f"{code}: {detail}" if detail else str(code)


def _read(trace_id: str, fields: Mapping[bytes, bytes]) -> Trace:
    def text(name: bytes) -> str | None:
        return fields[name].decode() if fields.get(name) else None

    def number(name: bytes) -> int:
        return int(fields.get(name, b"0"))

    values: dict[str, Any] = {
        "state": text(b"state"),
        "cause": text(b"cause"),
        "ended_at": number(b"ended_at") or None,
        "entry": text(b"entry") or "",
        "dead_head": fields.get(b"dead_head"),
        "last": fields.get(b"last"),
    }
    for name in ("reason", "session", "replayed_from", "error_code", "dead_target",
                 "dead_message_id", "agent_session"):  # fmt: skip
        values[name] = text(name.encode())
    for name in ("live", "outputs", "dead", "revivals", "told", "created_at"):
        values[name] = number(name.encode())
    return Trace(id=trace_id, **values)
