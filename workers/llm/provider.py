"""Providers: what a model is asked, what it answers, and what stands for no answer."""

from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import ConfigDict, Field, JsonValue

from colony.body import Entry, Frozen
from colony.cell import Cell

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
ErrorCode = Literal[
    "rate_limited",
    "auth",
    "timeout",
    "model_not_found",
    "context_length",
    "no_choices",
    "empty_answer",
    "provider_error",
    "invalid_input",
]

DETAIL_BYTES = 500


class Generation(Cell.Params):
    """The params that shape one call; a message may change them for the calls after it."""

    model: str = ""
    temperature: float | None = 0.7
    max_tokens: int | None = Field(default=4096, ge=1)
    reasoning: JsonValue = None
    reasoning_effort: str | None = None
    provider_extra: dict[str, JsonValue] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that is offered: its name, and its definition as providers of functions read it."""

    name: str
    definition: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Request:
    """One call. `seed` is the same whenever the same call is made again."""

    entries: tuple[Entry, ...]
    system: str | None
    tools: tuple[Tool, ...]
    generation: Generation
    seed: str


class Call(Frozen):
    """A tool call a model asks for; `arguments` is the text it wrote."""

    id: str
    name: str
    arguments: str


class Answer(Frozen):
    """What a model gave: a text, calls, or both. The counts are absent where nobody counted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str
    finish_reason: FinishReason
    text: str | None = None
    calls: tuple[Call, ...] = ()
    response_id: str | None = None
    tokens_prompt: int | None = None
    tokens_completion: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no answer: what the edges are told, what a person is, and who says so."""

    code: ErrorCode
    detail: str
    source: Literal["request", "provider"] = "provider"
    kind: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """The failure as `meta.error`, its detail cut to 500 bytes."""
        detail = self.detail.encode(errors="replace")[:DETAIL_BYTES].decode(errors="ignore")
        told: dict[str, JsonValue] = {"source": self.source, "detail": detail, "code": self.code}
        return told if self.kind is None else {**told, "kind": self.kind}


Reply = Answer | Failure


class Provider(Protocol):
    """Somebody who answers requests."""

    async def complete(self, request: Request) -> Reply:
        """The answer to `request`. Whatever goes wrong is a Failure, not an exception."""

    async def close(self) -> None:
        """Nothing is held open afterwards."""
