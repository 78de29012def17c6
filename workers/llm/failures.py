"""Failures: which of our few codes stands for what a provider says went wrong."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from workers.llm.provider import ErrorCode, Failure

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
)


def from_error_body(error: JsonValue, *, status: int | None) -> Failure:
    """The failure that an `error` object stands for, in a refusal or inside a 200 body."""
    fields = error if isinstance(error, dict) else {"message": error}
    status = status or _status(fields)
    sentence = fields.get("message")
    detail = sentence if isinstance(sentence, str) else json.dumps(error, default=str)
    return Failure(_code(fields, status), detail, kind=_kind(fields, status))


def _code(fields: Mapping[str, JsonValue], status: int | None) -> ErrorCode:
    said = " ".join(str(fields.get(name, "")) for name in ("code", "type", "message")).lower()
    phrase = next((code for words, code in _PHRASES if words in said), None)
    # A window that is full comes as 400 or 413, and only the words tell it from other mistakes.
    if phrase == "context_length" and status in (None, 400, 413, 422, 500):
        return phrase
    if status in _STATUS:
        return _STATUS[status]
    return phrase or "provider_error" if status in (None, 200, 400) else "provider_error"


def _status(fields: Mapping[str, JsonValue]) -> int | None:
    for name in ("code", "status", "http_status"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isdecimal():
            return int(value)
    return None


def _kind(fields: Mapping[str, JsonValue], status: int | None) -> str | None:
    for name in ("type", "code"):
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
    return None if status is None else f"http_{status}"
