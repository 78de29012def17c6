"""Providers: what a model is asked, what it answers, and what stands for no answer."""

from collections.abc import Callable
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
    "stream_cut",
    "invalid_input",
]

Outcome = Literal["tool_calls", "message", "empty", "refused", "truncated"]
CallProblem = Literal["truncated", "invalid_arguments", "missing_name"]

# Where a provider departed from its protocol, and what was made of it.
AnswerWarning = Literal[
    "arguments_double_encoded",
    "arguments_not_string",
    "call_duplicate_dropped",
    "done_missing",
    "finish_reason_mismatch",
    "finish_reason_missing",
    "finish_reason_unknown",
    "id_changed_mid_call",
    "id_duplicate",
    "id_not_string",
    "id_synthesized",
    "index_missing",
    "index_reused",
    "legacy_function_call",
    "tool_call_in_text",
]

# Whether the same call may be made again, and how much of it somebody may have seen. Unknown is
# never permission.
Disposition = Literal["unknown", "retryable", "permanent"]
Progress = Literal["unknown", "precommit", "visible", "complete"]

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
    """One call. `seed` is the same whenever the same call is made again.

    `iteration` is how many rounds the tree has counted before it; 0 where it counts none.
    """

    entries: tuple[Entry, ...]
    system: str | None
    tools: tuple[Tool, ...]
    generation: Generation
    seed: str
    iteration: int = 0


class Call(Frozen):
    """A tool call a model asks for; `arguments` is the text of a JSON object.

    One with a `problem` is never run, and is answered by an error under its id; its `arguments` are
    what the model wrote. `vendor` is what the provider wants back with the call.
    """

    id: str
    name: str
    arguments: str
    problem: CallProblem | None = None
    vendor: dict[str, JsonValue] | None = None


class Answer(Frozen):
    """What a model gave: a text, calls, or both. The counts are absent where nobody counted.

    `warnings` names, from a closed set, where the provider departed from its protocol. `vendor` is
    what the provider wants back with the whole turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str
    outcome: Outcome
    finish_reason: FinishReason
    text: str | None = None
    calls: tuple[Call, ...] = ()
    response_id: str | None = None
    tokens_prompt: int | None = None
    tokens_completion: int | None = None
    tokens_cached: int | None = None
    warnings: tuple[AnswerWarning, ...] = ()
    vendor: dict[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no answer: what the edges are told, what a person is, and who says so.

    `retry_after_s` is what the provider asked for.
    """

    code: ErrorCode
    detail: str
    source: Literal["request", "provider"] = "provider"
    kind: str | None = None
    disposition: Disposition = "unknown"
    progress: Progress = "unknown"
    retry_after_s: float | None = None
    warnings: tuple[AnswerWarning, ...] = ()

    def to_json(self) -> dict[str, JsonValue]:
        """The failure as `meta.error`, its detail cut to 500 bytes."""
        detail = self.detail.encode(errors="replace")[:DETAIL_BYTES].decode(errors="ignore")
        told: dict[str, JsonValue] = {"source": self.source, "detail": detail, "code": self.code}
        kind: dict[str, JsonValue] = {} if self.kind is None else {"kind": self.kind}
        return {**told, **kind, **self.prospects}

    @property
    def prospects(self) -> dict[str, JsonValue]:
        """Whether asking again may help, how much was seen, and when, as edges are told."""
        told: dict[str, JsonValue] = {
            "retry_disposition": self.disposition,
            "stream_progress": self.progress,
        }
        if self.retry_after_s is not None:
            told["retry_after_s"] = round(self.retry_after_s, 3)
        return told


Reply = Answer | Failure


class Listener(Protocol):
    """Who hears an answer while it is made. What it is not told, it finds in the answer."""

    async def text(self, fragment: str) -> None:
        """The next piece of the text, never empty."""

    async def reasoning(self, fragment: str) -> None:
        """The next piece of what the model thinks, never empty."""


# Told the bytes of a request as they go out.
Sent = Callable[[bytes], None]


def unseen(body: bytes) -> None:
    """Nobody is told what goes out."""


class Witness(Listener, Protocol):
    """A listener that is told what goes out as well."""

    def sent(self, body: bytes) -> None:
        """These bytes go out now, and nothing else of the request but its headers."""


class Provider(Protocol):
    """Somebody who answers requests."""

    async def complete(self, request: Request, witness: Witness) -> Reply:
        """The answer to `request`. Whatever goes wrong is a Failure, not an exception."""

    async def close(self) -> None:
        """Nothing is held open afterwards."""
