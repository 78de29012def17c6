"""Engine: what an application holds to work with agents: sessions, runs, and what they tell.

The engine drives nothing itself. Whoever holds a run may go away; the run goes on, and anybody may
take it up again from any process.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self

from pydantic import JsonValue, ValidationError

from colony.access import Access
from colony.access.run_feed import RunFeed
from colony.access.run_follower import Frame, RunFollower
from colony.agent.asks import Decision, Verdict
from colony.agent.events import Event
from colony.agent.history import HistoryRow
from colony.agent.record import (
    Disposition,
    Limits,
    Progress,
    RunKind,
    RunRecord,
    SessionRecord,
    Usage,
)
from colony.agent.rules import RuleSet
from colony.body import Entry, explain
from colony.config import Config
from colony.envelope import digest, new_id
from colony.errors import (
    AgentNotFound,
    AskNotPending,
    FollowerLagging,
    InvalidArgument,
    ServerStopping,
    ServerUnavailable,
    SessionNotFound,
    StaleRunControl,
    TraceNotFound,
)
from colony.runs import AgentSessions, Runs
from colony.runs.asks import PendingAsk, RunAsks
from colony.runs.sessions import SessionPage
from colony.servers import server_of

RETRY_S: Final = 0.5

OnDisconnect = Literal["continue", "cancel"]


@dataclass(frozen=True, slots=True)
class Result:
    """How a run has ended. `error` is a code; `text` the last that the model said."""

    stop: str
    state: str
    text: str
    error: str
    usage: Usage
    disposition: Disposition
    progress: Progress
    dropped_steers: Sequence[str] = ()

    @classmethod
    def of(cls, event: Event) -> Self:
        """The result that an event tells."""
        told: Any = event.payload
        return cls(
            stop=told["stop"],
            state=told["state"],
            text=told["text"],
            error=told["error"],
            usage=Usage.model_validate(told["usage"]),
            disposition=told["retry_disposition"],
            progress=told["stream_progress"],
            dropped_steers=told.get("dropped_steers", ()),
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a session. It belongs to nobody: closing, or dropping it, ends nothing."""

    engine: "Engine" = field(repr=False)
    id: str
    session_id: str
    on_disconnect: OnDisconnect = "continue"
    cancel_with_task: bool = False

    async def events(self) -> AsyncGenerator[Event]:
        """Every event of the run in order, `session.init` first and `result` last.

        A server that is away for a while is waited for. Where the log itself is another one
        afterwards, what is told begins anew.
        """
        over = False
        try:
            async with aclosing(self.frames()) as frames:
                async for frame in frames:
                    if frame.event is not None:
                        over = frame.event.kind == "result"
                        yield frame.event
        except ServerStopping:
            # No run ends because a process does.
            over = True
            raise
        except asyncio.CancelledError:
            if self.cancel_with_task and not over:
                await asyncio.shield(self._cancelled())
            raise
        finally:
            if self.on_disconnect == "cancel" and not over:
                await asyncio.shield(self._cancelled())

    async def frames(self) -> AsyncGenerator[Frame]:
        """The events with the cursor behind each, a mark where those that were kept end, and a gap
        where what follows begins anew."""
        follower = RunFollower(self.session_id, self.id)
        marked = False
        while True:
            async with aclosing(self.engine.feed.go_on(follower)) as frames:
                # Whoever takes its time goes on where it was: the log has what it missed.
                with suppress(ServerUnavailable, FollowerLagging):
                    async for frame in frames:
                        if frame.phase == "mark" and marked:
                            continue
                        marked = frame.phase == "mark" or (marked and frame.phase != "gap")
                        yield frame
                        if frame.event is not None and frame.event.kind == "result":
                            return
            await asyncio.sleep(RETRY_S)

    async def result(self) -> Result:
        """How the run has ended, once it has."""
        try:
            async with aclosing(self.frames()) as frames:
                async for frame in frames:
                    if frame.event is not None and frame.event.kind == "result":
                        return Result.of(frame.event)
        except asyncio.CancelledError:
            if self.cancel_with_task:
                await asyncio.shield(self._cancelled())
            raise
        raise SessionNotFound(session_id=self.session_id)

    async def resolve(
        self,
        ask_id: str,
        verdict: Verdict,
        reason: str = "",
        *,
        args: Mapping[str, JsonValue] | None = None,
        idempotency_key: str | None = None,
        actor: str = "",
    ) -> Decision:
        """Answer an ask of the run; the first answer counts.

        `args` replace the arguments of a call that is allowed once. Raises AskNotPending where it
        was answered before, but not to the same `idempotency_key`, which is told the first answer;
        StaleRunControl where the run is not under way.
        """
        return await self.engine.resolve(
            self.session_id,
            self.id,
            ask_id,
            verdict,
            reason,
            args=args,
            idempotency_key=idempotency_key,
            actor=actor,
        )

    async def cancel(self) -> bool:
        """End the run as cancelled, wherever it is; False where it had ended before."""
        return await self.engine.cancel(self.session_id, self.id)

    async def steer(self, text: str) -> None:
        """Say something that the run takes up at its next boundary.

        Raises StaleRunControl where it is not under way.
        """
        await self.engine.steer(self.session_id, text, run_id=self.id)

    async def _cancelled(self) -> None:
        with suppress(StaleRunControl):
            await self.cancel()


class Engine:
    """Agents of the colony on one server.

    Where `owner` is given, a session of somebody else is as if it were not there.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.feed = RunFeed(access.link, access.keys)
        self._sessions = AgentSessions(access.link, access.keys)
        self._runs = Runs(access.link, access.keys)
        self._asks = RunAsks(access.link, access.keys)
        self._owns_access = False

    @classmethod
    async def connect(cls, url: str | None = None, *, colony: str | None = None) -> Self:
        """An engine over a connection of its own.

        What is not given is as for the command line: the settings name it, and the server is
        otherwise that of `colony up` on this host. Raises ServerUnavailable where none answers,
        ServerMissing where none is named or runs.
        """
        config = Config.load({"name": colony})
        engine = cls(Access(url or server_of(config), config.name))
        engine._owns_access = True
        await engine.access.link.open()
        return engine

    async def close(self) -> None:
        """Nobody follows any more, and what the engine has connected is closed."""
        await self.feed.close()
        if self._owns_access:
            await self.access.close()

    async def agents(self) -> list[str]:
        """The names of the agents of the published tree."""
        topology = await self.access.topology()
        return sorted(path.removeprefix("/") for path in topology.spec.agents)

    # Sessions

    async def create_session(
        self,
        agent: str,
        *,
        owner: str = "",
        model: str = "",
        limits: Mapping[str, JsonValue] | None = None,
        rules: Mapping[str, Sequence[str]] | None = None,
        ask_policy: Literal["ask", "deny"] = "ask",
        history: Sequence[HistoryRow] = (),
    ) -> SessionRecord:
        """A session of an agent, idle.

        Raises AgentNotFound, and InvalidArgument for limits and rules that are none.
        """
        _sayable([model, {effect: [*found] for effect, found in (rules or {}).items()}])
        name = agent.removeprefix("/")
        if name not in await self.agents():
            raise AgentNotFound(agent=agent)
        settings = (await self.access.topology()).settings
        return await self._sessions.create(
            name,
            owner=owner,
            model=model,
            limits=_limits(limits),
            rules=_rules(rules),
            ask_policy=ask_policy,
            history=history,
            keep_ms=settings.session_retention_ms,
        )

    async def session(self, session_id: str, *, owner: str | None = None) -> SessionRecord:
        """A session; raises SessionNotFound."""
        return await self._sessions.get(session_id, owner=owner)

    async def sessions(
        self, *, owner: str | None = None, cursor: str = "", limit: int = 50
    ) -> SessionPage:
        """Sessions, the one that changed last first."""
        return await self._sessions.page(owner=owner, cursor=cursor, limit=limit)

    async def transcript(self, session_id: str, *, owner: str | None = None) -> list[HistoryRow]:
        """What was said in a session, as its models are to remember it."""
        await self.session(session_id, owner=owner)
        return await self._sessions.history(session_id)

    async def fork(
        self, session_id: str, *, run_id: str, turn: int, owner: str | None = None
    ) -> SessionRecord:
        """A new session that begins with the history up to and with a turn of a run.

        Raises StaleRunControl where the history has no such turn.
        """
        session = await self.session(session_id, owner=owner)
        rows = await self._sessions.history(session_id)
        of_turn = [at for at, row in enumerate(rows) if row.run_id == run_id and row.turn <= turn]
        if not of_turn or turn > max(rows[at].turn for at in of_turn):
            raise StaleRunControl(session_id=session_id)
        return await self._sessions.fork(session, rows=of_turn[-1] + 1)

    async def delete(self, session_id: str, *, owner: str | None = None) -> None:
        """Forget a session; a run of it that is under way is cancelled first."""
        session = await self.session(session_id, owner=owner)
        if session.live:
            await self._runs.end(
                session.run_id, session_id, cause="cancelled", reason="session_deleted"
            )
        await self._sessions.delete(session)

    # Runs

    async def run(
        self,
        session_id: str,
        text: str,
        *,
        owner: str | None = None,
        limits: Mapping[str, JsonValue] | None = None,
        idempotency_key: str | None = None,
        on_disconnect: OnDisconnect = "continue",
        cancel_with_task: bool = False,
    ) -> Run:
        """Begin a run of a session with what a person says.

        The same `idempotency_key` is answered with the run that it began first. Raises
        SessionBusy, SessionAwaiting and RetryPending where the session is not free.
        """
        if not text.strip():
            raise InvalidArgument(detail="a prompt says something")
        _sayable(text)
        return await self._begin(
            session_id,
            "prompt",
            (Entry.say("user", text),),
            owner=owner,
            limits=limits,
            idempotency_key=idempotency_key,
            on_disconnect=on_disconnect,
            cancel_with_task=cancel_with_task,
        )

    async def retry(
        self,
        session_id: str,
        *,
        owner: str | None = None,
        idempotency_key: str | None = None,
        on_disconnect: OnDisconnect = "continue",
    ) -> Run:
        """Make the step again that the last run of a session has failed in.

        Raises RetryIneligible where that is none to make again.
        """
        return await self._begin(
            session_id,
            "retry",
            (),
            owner=owner,
            idempotency_key=idempotency_key,
            on_disconnect=on_disconnect,
        )

    async def compact(self, session_id: str, *, owner: str | None = None) -> bool:
        """Fold the oldest part of a session that no run drives; whether anything was folded."""
        run = await self._begin(session_id, "compact", (), owner=owner)
        folded = False
        async for event in run.events():
            folded = folded or event.kind == "compaction"
        return folded

    async def record(self, run_id: str) -> RunRecord | None:
        """What is kept of a run; None where it is no longer."""
        with suppress(TraceNotFound):
            return await self._runs.get(run_id)
        return None

    def attach(self, session_id: str, run_id: str) -> Run:
        """A run that somebody has begun."""
        return Run(self, run_id, session_id)

    async def cancel(self, session_id: str, run_id: str, *, owner: str | None = None) -> bool:
        """End a run as cancelled; False where it had ended before.

        Raises StaleRunControl where the session has no such run.
        """
        await self.session(session_id, owner=owner)
        return await self._runs.end(run_id, session_id, cause="cancelled", reason="requested")

    async def steer(
        self,
        session_id: str,
        text: str,
        *,
        run_id: str = "",
        owner: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Say something to the run under way, which takes it up at its next boundary; its id."""
        if not text.strip():
            raise InvalidArgument(detail="a steer says something")
        _sayable(text)
        await self.session(session_id, owner=owner)
        token = idempotency_key or new_id()
        return await self._runs.steer(session_id, text, run_id=run_id, token=token)

    async def asks(
        self, session_id: str | None = None, *, owner: str | None = None
    ) -> list[PendingAsk]:
        """The asks that wait for an answer, of one session or of all."""
        if session_id is not None:
            session = await self.session(session_id, owner=owner)
            return await self._asks.pending_of(session)
        found = await self._asks.pending()
        if owner is None:
            return found
        return [ask for ask in found if await self._is_of(ask.session_id, owner)]

    async def resolve(
        self,
        session_id: str,
        run_id: str,
        ask_id: str,
        verdict: Verdict,
        reason: str = "",
        *,
        args: Mapping[str, JsonValue] | None = None,
        idempotency_key: str | None = None,
        actor: str = "",
        owner: str | None = None,
    ) -> Decision:
        """Answer an ask, as `Run.resolve` says."""
        if verdict not in ("allow_once", "allow_always", "deny"):
            raise InvalidArgument(detail="a verdict is allow_once, allow_always or deny")
        if args is not None and verdict != "allow_once":
            raise InvalidArgument(detail="arguments can be edited where a call is allowed once")
        _sayable([reason, None if args is None else dict(args)])
        session = await self.session(session_id, owner=owner)
        asked = await self._asks.find(run_id, ask_id, session_id)
        if asked is None:
            if session.run_id != run_id:
                raise StaleRunControl(session_id=session_id)
            raise AskNotPending(ask_id=ask_id)
        rule = asked.ask.rule if verdict == "allow_always" else ""
        edited = None if args is None else dict(args)
        decision = Decision(
            verdict=verdict,
            reason=reason,
            actor=actor,
            args=edited,
            args_hash=digest(edited) if edited is not None else asked.ask.args_hash,
            learned=bool(rule),
        )
        token = idempotency_key or new_id()
        return await self._asks.decide(asked, decision, token=token, rule=rule)

    async def follow(
        self,
        session_id: str,
        *,
        owner: str | None = None,
        cursor: str | None = None,
        run_id: str | None = None,
        follow: bool = True,
    ) -> AsyncGenerator[Frame]:
        """The events of a session, as `RunFeed.follow` tells them."""
        await self.session(session_id, owner=owner)
        frames = self.feed.follow(session_id, cursor=cursor, run_id=run_id, follow=follow)
        async with aclosing(frames):
            async for frame in frames:
                yield frame

    async def _begin(
        self,
        session_id: str,
        kind: RunKind,
        entries: Sequence[Entry],
        *,
        owner: str | None,
        limits: Mapping[str, JsonValue] | None = None,
        idempotency_key: str | None = None,
        on_disconnect: OnDisconnect = "continue",
        cancel_with_task: bool = False,
    ) -> Run:
        session = await self.session(session_id, owner=owner)
        settings = (await self.access.topology()).settings
        begun = await self._runs.begin(
            session,
            kind,
            entries,
            limits=session.limits if limits is None else _tightened(session.limits, limits),
            guard=idempotency_key,
            ttl=settings.message_default_ttl,
            guard_keep_ms=settings.idempotency_retention_ms,
            session_keep_ms=settings.session_retention_ms,
        )
        return Run(self, begun.run_id, session_id, on_disconnect, cancel_with_task)

    async def _is_of(self, session_id: str, owner: str) -> bool:
        with suppress(SessionNotFound):
            await self.session(session_id, owner=owner)
            return True
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _sayable(value: JsonValue) -> None:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError, RecursionError):
        detail = "a text with half a character, a number that is none, or too deep"
        raise InvalidArgument(detail=detail) from None


def _limits(given: Mapping[str, JsonValue] | None) -> Limits | None:
    if given is None:
        return None
    try:
        return Limits.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidArgument(detail=f"limits: {explain(error)}") from None


def _tightened(own: Limits, given: Mapping[str, JsonValue]) -> Limits:
    try:
        return own.tightened(given)
    except ValidationError as error:
        raise InvalidArgument(detail=f"limits: {explain(error)}") from None


def _rules(given: Mapping[str, Sequence[str]] | None) -> Mapping[str, Sequence[str]]:
    try:
        RuleSet.parse("session", given or {})
    except ValueError as error:
        raise InvalidArgument(detail=str(error)) from None
    return given or {}
