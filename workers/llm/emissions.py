"""Emissions: what edges, readers and the next model are told of an answer, or of none."""

from collections.abc import Mapping, Sequence

from pydantic import Field, JsonValue

from colony.body import Body, Frozen
from colony.envelope import Emission
from workers.llm.provider import Answer, Failure
from workers.llm.threads.thread import to_entries

# What may stand in hop.
HOP = frozenset(
    {
        "finish_reason",
        "outcome",
        "model",
        "tokens_prompt",
        "tokens_completion",
        "error_code",
        "retry_disposition",
        "stream_progress",
        "retry_after_s",
    }
)


class Told(Frozen):
    """An answer as it is journalled, with what it took."""

    answer: Answer
    started_at: int
    latency_ms: int
    attempts: int = 1
    warnings: dict[str, int] = Field(default_factory=dict)


def said(told: Told, *, provider: str, repairs: Mapping[str, int]) -> Emission:
    """The new entries of an answer. Whatever holds calls is routed as calls."""
    answer = told.answer
    counts = {
        "tokens_prompt": answer.tokens_prompt,
        "tokens_completion": answer.tokens_completion,
    }
    meta: dict[str, JsonValue] = {
        "provider": provider,
        "model": answer.model,
        "response_id": answer.response_id,
        "latency_ms": told.latency_ms,
        "started_at": told.started_at,
        "attempts": told.attempts,
        **_where_any("repairs", repairs),
        **_where_any("warnings", told.warnings),
    }
    hop: dict[str, JsonValue] = {
        "finish_reason": "tool_calls" if answer.calls else answer.finish_reason,
        "outcome": answer.outcome,
        "model": answer.model,
        **{name: count for name, count in counts.items() if count is not None},
    }
    return Emission(hop=hop, body=_body(to_entries(answer, provider), meta))


def failed(
    failure: Failure,
    *,
    messages: Sequence[object],
    provider: str,
    model: str,
    attempts: int,
    warnings: Mapping[str, int],
) -> Emission:
    """The messages unchanged, with what went wrong and whether another try may help."""
    meta: dict[str, JsonValue] = {
        "provider": provider,
        "model": model,
        "attempts": attempts,
        "error": failure.to_json(),
        **_where_any("warnings", warnings),
    }
    hop: dict[str, JsonValue] = {
        "finish_reason": "error",
        "error_code": failure.code,
        **failure.prospects,
    }
    return Emission(hop=hop, body=_body(messages, meta))


def _where_any(name: str, counts: Mapping[str, int]) -> dict[str, JsonValue]:
    return {name: {**counts}} if counts else {}


def _body(messages: Sequence[object], meta: Mapping[str, JsonValue]) -> Body:
    return Body.model_validate({"messages": tuple(messages), "meta": dict(meta)})
