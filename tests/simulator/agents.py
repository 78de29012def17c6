"""Actors of agents: clients that begin, answer, steer and cancel runs, keepers of deadlines.

A client that is not answered asks again, under the same guard or token, and gives up in the end.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from colony.agent.asks import Decision
from colony.agent.record import RunKind
from colony.body import Entry
from colony.envelope import derived_id
from colony.errors import (
    AskNotPending,
    BlobUnavailable,
    GuardReused,
    RetryIneligible,
    RetryPending,
    ServerChanged,
    ServerUnavailable,
    SessionAwaiting,
    SessionBusy,
    SessionNotFound,
    StaleRunControl,
    TraceNotFound,
)
from colony.keeping.ask_deadlines import AskDeadlines
from colony.runs.asks import PendingAsk, RunAsks
from colony.runs.runs import Runs
from colony.traces import Traces
from tests.simulator.actors import Means
from tests.simulator.agent_tree import Plan, session_record
from tests.simulator.conductor import SteppedLink

GIVES_UP: Final = 0.1
# A session that is not there.
NOWHERE: Final = derived_id("session", "nowhere")
# More than what travels with an envelope.
LONG: Final = "!" * 70_000


@dataclass(eq=False)
class Prompt:
    """What a client has a session do, under a guard of its own."""

    session: str
    kind: RunKind
    plan: Plan
    guard: str
    long: bool = False
    told: bool = False
    unguarded: bool = False

    @property
    def run_id(self) -> str:
        """The run that it opens."""
        return derived_id("run", f"{self.session}:{self.guard}")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What is said."""
        text = self.plan.model_dump_json() + (f"\n{LONG}" if self.long else "")
        return (Entry.say("user", text),)


@dataclass(frozen=True)
class Answer:
    """What a client has to say to an ask, under a token."""

    session: str
    run_id: str
    ask_id: str
    token: str
    decision: Decision
    rule: str = ""


@dataclass(frozen=True)
class Steer:
    """What a client says to a run under way, under a token."""

    session: str
    run_id: str
    text: str

    @property
    def token(self) -> str:
        """No two say the same here."""
        return f"token of {self.text}"


class AgentClient:
    """Whoever uses agents."""

    def __init__(self, link: SteppedLink, means: Means) -> None:
        self.problems: list[tuple[str, str | None]] = []
        self.refused: list[Prompt] = []
        self.heard: dict[tuple[str, str], str] = {}
        self._random = means.random
        self._runs = Runs(link, means.keys)
        self._asks = RunAsks(link, means.keys)
        self._traces = Traces(link, means.keys)

    async def begin(self, prompt: Prompt) -> None:
        """A job: have a run begun, once however often it is asked for."""
        await self._insist(lambda: self._begin(prompt))

    async def misuse(self, prompt: Prompt) -> None:
        """A job: have another run begun under the guard of one."""
        try:
            await self._runs.begin(
                session_record(prompt.session),
                prompt.kind,
                (Entry.say("user", "another one"),),
                guard=prompt.guard,
            )
        except (ServerUnavailable, GuardReused):
            return
        # One that was remembered for its time serves whatever its run was opened for.
        if not prompt.unguarded:
            self.problems.append(("a guard served two requests", prompt.run_id))

    async def begin_nowhere(self) -> None:
        """A job: have a run begun in a session that is not there."""
        try:
            begun = await self._runs.begin(session_record(NOWHERE), "prompt", guard="nowhere")
        except (ServerUnavailable, SessionNotFound):
            return
        self.problems.append(("a session that is not there has a run", begun.run_id))

    async def answer(self, answer: Answer) -> None:
        """A job: answer an ask, once however often under the same token."""
        await self._insist(lambda: self._answer(answer))

    async def steer(self, steer: Steer) -> None:
        """A job: say something to a run under way, once however often under the same token."""
        await self._insist(lambda: self._steer(steer))

    async def cancel(self, run_id: str, session: str) -> None:
        """A job: cancel a run."""
        await self._insist(lambda: self._cancel(run_id, session))

    async def time_out(self, run_id: str) -> None:
        """A job: end a run as its deadline would."""
        await self._insist(lambda: self._time_out(run_id))

    async def _insist(self, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await act()
            except (ServerUnavailable, BlobUnavailable):
                if self._random.random() < GIVES_UP:
                    return

    async def _begin(self, prompt: Prompt) -> None:
        try:
            begun = await self._runs.begin(
                session_record(prompt.session),
                prompt.kind,
                prompt.entries,
                ttl=1000,
                guard=prompt.guard,
            )
        except (SessionBusy, SessionAwaiting, RetryPending, RetryIneligible):
            self.refused.append(prompt)
            return
        assert begun.run_id == prompt.run_id
        prompt.told = True

    async def _answer(self, answer: Answer) -> None:
        asked = await self._asks.find(answer.run_id, answer.ask_id, answer.session)
        if asked is None:
            # The server has forgotten it, or never knew: nothing waits.
            return
        await self._decide(answer, asked)

    async def _decide(self, answer: Answer, asked: PendingAsk) -> None:
        key = (answer.ask_id, answer.token)
        try:
            counts = await self._asks.decide(
                asked, answer.decision, token=answer.token, rule=answer.rule
            )
        except AskNotPending:
            if key in self.heard:
                self.problems.append(("an answer counted, and its repeat did not", asked.run_id))
            return
        except StaleRunControl:
            return
        told = counts.model_dump_json()
        if self.heard.setdefault(key, told) != told:
            self.problems.append(("one token was told two answers", asked.run_id))

    async def _steer(self, steer: Steer) -> None:
        try:
            run_id = await self._runs.steer(
                steer.session, steer.text, run_id=steer.run_id, token=steer.token
            )
        except StaleRunControl:
            return
        if steer.run_id not in ("", run_id):
            self.problems.append((f"it was steered by what was said to {steer.run_id}", run_id))

    async def _cancel(self, run_id: str, session: str) -> None:
        try:
            await self._runs.end(run_id, session, cause="cancelled", reason="requested")
        except StaleRunControl:
            return

    async def _time_out(self, run_id: str) -> None:
        try:
            await self._traces.end(run_id, "failed", "trace_timeout")
        except TraceNotFound:
            return


class Deadlines:
    """A keeper of the deadlines of asks."""

    def __init__(self, name: str, link: SteppedLink, means: Means) -> None:
        self.name = name
        self.denied = 0
        self._asks = AskDeadlines(link, means.keys)

    async def look(self) -> None:
        """A job: deny what is overdue."""
        try:
            self.denied += await self._asks.look()
        except (ServerUnavailable, ServerChanged):
            return
