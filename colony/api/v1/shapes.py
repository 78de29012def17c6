"""Shapes: what calls about agents are sent, and what they answer."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from colony.agent.asks import AskKind, Verdict
from colony.agent.history import HistoryRow, RowKind
from colony.agent.record import Limits, RunRecord, SessionRecord
from colony.body import Frozen
from colony.engine import OnDisconnect
from colony.runs.asks import PendingAsk

Text = Annotated[str, Field(min_length=1)]


class NewSession(Frozen):
    """A session to be made. `rules` are permission rules by their effect."""

    agent: Text
    model: Annotated[str, Field(max_length=256)] = ""
    limits: Limits | None = None
    rules: dict[Literal["allow", "ask", "deny"], list[str]] | None = None
    ask_policy: Literal["ask", "deny"] = "ask"


class Part(Frozen):
    """A part of a prompt. Agents read text."""

    type: Literal["text"]
    text: str


class Prompt(Frozen):
    """What a person says: a text, or parts of one. Limits can only be lowered."""

    text: str | None = None
    parts: list[Part] | None = None
    limits: Limits | None = None
    on_disconnect: OnDisconnect = "continue"

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.said.strip():
            raise ValueError("text or parts say something")
        return self

    @property
    def said(self) -> str:
        """All of it, its parts as paragraphs."""
        parts = [part.text for part in self.parts or ()]
        return "\n\n".join([*([self.text] if self.text else []), *parts])


class Retry(Frozen):
    """The last step is to be made again."""

    on_disconnect: OnDisconnect = "continue"


class ResolveAsk(Frozen):
    """An answer to an ask; `args` replace the arguments of a call that is allowed once."""

    run_id: Text
    ask_id: Text
    verdict: Verdict
    reason: str = ""
    args: dict[str, JsonValue] | None = None


class Cancel(Frozen):
    """A run is to end."""

    run_id: Text


class Steer(Frozen):
    """Something that a run is told on its way; without `run_id`, whichever is under way."""

    text: Text
    run_id: str = ""


class Fork(Frozen):
    """A copy of a session up to and with a turn of a run."""

    run_id: Text
    turn: Annotated[int, Field(ge=-1)]


class Nothing(Frozen):
    """A body that says nothing."""


class AskView(Frozen):
    """An ask that waits for an answer; `deadline` in milliseconds since the epoch."""

    session_id: str
    run_id: str
    ask_id: str
    call_id: str
    tool: str
    args: dict[str, JsonValue]
    reason: str
    kind: AskKind
    args_hash: str
    deadline: int
    rule: str

    @classmethod
    def of(cls, ask: PendingAsk) -> Self:
        """An ask as a client is told it."""
        return cls.model_validate(ask.to_json())


class Counters(Frozen):
    """What the newest run has done."""

    turns: int = 0
    tool_calls: int = 0
    failures: int = 0

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        """The counters of a run."""
        return cls(turns=run.turns, tool_calls=run.tool_calls, failures=run.failures)


class SessionView(SessionRecord):
    """A session, its asks that wait for an answer, and the counters of its newest run."""

    asks: list[AskView] = Field(default_factory=list)
    counters: Counters = Field(default_factory=Counters)


class SessionPageView(Frozen):
    """Sessions, the one that changed last first; `cursor` is empty behind the last page."""

    sessions: list[SessionRecord]
    cursor: str


class TranscriptRow(Frozen):
    """Something that was said; `messages` are entries of the body format."""

    kind: RowKind
    run_id: str
    turn: int
    messages: list[dict[str, JsonValue]]
    upto: int = 0

    @classmethod
    def of(cls, row: HistoryRow) -> Self:
        """A row of the history."""
        messages = [entry.to_json() for entry in row.entries]
        return cls(
            kind=row.kind, run_id=row.run_id, turn=row.turn, messages=messages, upto=row.upto
        )


class Transcript(Frozen):
    """What was said in a session."""

    messages: list[TranscriptRow]


class Begun(Frozen):
    """A run that was begun, or steered, or is to end."""

    session_id: str
    run_id: str


class Resolved(Frozen):
    """The answer to an ask that counts. `learned` says that a rule was made of it."""

    run_id: str
    ask_id: str
    verdict: Verdict
    learned: bool


class Compacted(Frozen):
    """Whether anything was folded."""

    compacted: bool


class Deleted(Frozen):
    """A session that is gone."""

    id: str
    deleted: Literal[True] = True


class Info(Frozen):
    """What is served here."""

    version: str
    api: Literal["v1"] = "v1"
    features: list[str]
