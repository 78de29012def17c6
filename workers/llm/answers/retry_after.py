"""Retry-After: how long a provider asks to be left alone, in whichever place it says so."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pydantic import JsonValue

_SECONDS = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*s?\s*")


def asked_for(headers: Mapping[str, str], error: Mapping[str, JsonValue]) -> float | None:
    """The seconds that the headers of a refusal ask for, else its `error` object; None if neither.

    Header names are in lower case.
    """
    within = error.get("metadata")
    metadata = within if isinstance(within, dict) else {}
    repeated = metadata.get("headers")
    lowered = {
        name.lower(): value
        for name, value in (repeated if isinstance(repeated, dict) else {}).items()
    }
    places = [
        _milliseconds(headers.get("retry-after-ms")),
        _seconds_or_date(headers.get("retry-after")),
        _milliseconds(error.get("retry_after_ms")),
        _seconds_or_date(error.get("retry_after")),
        _milliseconds(metadata.get("retry_after_ms")),
        _seconds_or_date(metadata.get("retry_after")),
        _seconds_or_date(lowered.get("retry-after")),
        _seconds_or_date(_delay_in(error.get("details"))),
    ]
    return next((seconds for seconds in places if seconds is not None), None)


def _milliseconds(written: JsonValue) -> float | None:
    seconds = _number(written)
    return None if seconds is None else seconds / 1000


def _seconds_or_date(written: JsonValue) -> float | None:
    seconds = _number(written)
    if seconds is not None or not isinstance(written, str):
        return seconds
    try:
        at = parsedate_to_datetime(written)
    except ValueError:
        return None
    # A date without a zone is in UTC, as HTTP has it.
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _number(written: JsonValue) -> float | None:
    if isinstance(written, (int, float)) and not isinstance(written, bool):
        return float(written) if 0 <= written < 1e15 else None
    match = _SECONDS.fullmatch(written) if isinstance(written, str) else None
    return None if match is None else float(match[1])


def _delay_in(details: JsonValue) -> JsonValue:
    """The delay among the details that some servers give, which name it `retryDelay`."""
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and detail.get("retryDelay"):
            return detail["retryDelay"]
    return None
