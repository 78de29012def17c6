"""Failures: which of our few codes stands for what a provider says went wrong, and whether asking
the same again may help."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from workers.llm.answers.retry_after import asked_for
from workers.llm.provider import Disposition, ErrorCode, Failure, Progress

_STATUS: dict[int, ErrorCode] = {
    401: "auth",
    403: "auth",
    404: "model_not_found",
    408: "timeout",
    413: "context_length",
    429: "rate_limited",
    504: "timeout",
}

# Looked for in the provider's code, its type and its sentence, in this order.
_PHRASES: tuple[tuple[str, ErrorCode], ...] = (
    ("context_length", "context_length"),
    ("context length", "context_length"),
    ("context window", "context_length"),
    ("prompt is too long", "context_length"),
    ("rate_limit", "rate_limited"),
    ("rate limit", "rate_limited"),
    ("insufficient_quota", "rate_limited"),
    ("too many requests", "rate_limited"),
    ("model_not_found", "model_not_found"),
    ("invalid_api_key", "auth"),
    ("authentication_error", "auth"),
    ("permission_error", "auth"),
    ("timed out", "timeout"),
    ("timeout", "timeout"),
)

_RETRYABLE_STATUS = frozenset({408, 409, 429})
_RETRYABLE_CODES = frozenset[ErrorCode]({"rate_limited", "timeout", "no_choices"})
_PERMANENT_CODES = frozenset[ErrorCode](
    {"auth", "model_not_found", "context_length", "invalid_input"}
)
# Where an error has no number: words for a server that is not well, and for a request that is not.
_RETRYABLE_WORDS = ("overloaded", "server_error", "server error", "unavailable", "capacity")
_PERMANENT_WORDS = ("invalid_request", "invalid request", "not_supported", "unsupported")

# The header by which some servers say it themselves.
SHOULD_RETRY = "x-should-retry"


def from_error_body(
    error: JsonValue,
    *,
    status: int | None,
    headers: Mapping[str, str] | None = None,
    progress: Progress = "precommit",
) -> Failure:
    """The failure that an `error` object stands for, in a refusal or inside a 200 body.

    `progress` says how much of an answer had been seen by then.
    """
    fields = error if isinstance(error, dict) else {"message": error}
    headers = headers or {}
    status = status or _status(fields)
    sentence = fields.get("message")
    detail = sentence if isinstance(sentence, str) and sentence else json.dumps(error, default=str)
    code = _code(fields, status)
    vetoed = headers.get(SHOULD_RETRY) == "false"
    return Failure(
        code,
        detail,
        kind=_kind(fields, status),
        disposition="permanent" if vetoed else _disposition(fields, status, code),
        progress=progress,
        retry_after_s=asked_for(headers, fields),
    )


def _code(fields: Mapping[str, JsonValue], status: int | None) -> ErrorCode:
    said = _said(fields)
    phrase = next((code for words, code in _PHRASES if words in said), None)
    # A window that is full comes as 400 or 413, and only the words tell it from other mistakes.
    if phrase == "context_length" and status in (None, 400, 413, 422, 500):
        return phrase
    if status in _STATUS:
        return _STATUS[status]
    return phrase or "provider_error" if status in (None, 200, 400) else "provider_error"


def _disposition(
    fields: Mapping[str, JsonValue], status: int | None, code: ErrorCode
) -> Disposition:
    if code in _PERMANENT_CODES:
        return "permanent"
    if status is not None and status >= 400:
        return "retryable" if status in _RETRYABLE_STATUS or status >= 500 else "permanent"
    if code in _RETRYABLE_CODES:
        return "retryable"
    said = _said(fields)
    if any(words in said for words in _PERMANENT_WORDS):
        return "permanent"
    return "retryable" if any(words in said for words in _RETRYABLE_WORDS) else "unknown"


def _said(fields: Mapping[str, JsonValue]) -> str:
    names = ("code", "type", "status", "message")
    return " ".join(str(fields.get(name, "")) for name in names).lower()


def _status(fields: Mapping[str, JsonValue]) -> int | None:
    for name in ("code", "status", "status_code", "http_status"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            return int(value)
    return None


def _kind(fields: Mapping[str, JsonValue], status: int | None) -> str | None:
    for name in ("type", "code"):
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
    return None if status is None else f"http_{status}"
