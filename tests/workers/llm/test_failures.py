"""Failures: the code, whether asking again may help, and when, by what a provider says."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from workers.llm.answers.failures import from_error_body
from workers.llm.answers.retry_after import asked_for


@pytest.mark.parametrize(
    ("status", "code", "disposition"),
    [
        (400, "provider_error", "permanent"),
        (401, "auth", "permanent"),
        (402, "provider_error", "permanent"),
        (403, "auth", "permanent"),
        (404, "model_not_found", "permanent"),
        (408, "timeout", "retryable"),
        (409, "provider_error", "retryable"),
        (413, "context_length", "permanent"),
        (422, "provider_error", "permanent"),
        (429, "rate_limited", "retryable"),
        (500, "provider_error", "retryable"),
        (502, "provider_error", "retryable"),
        (503, "provider_error", "retryable"),
        (504, "timeout", "retryable"),
        (529, "provider_error", "retryable"),
    ],
)
def test_a_status_says_whether_asking_again_may_help(
    status: int, code: str, disposition: str
) -> None:
    refused = from_error_body({"message": "no"}, status=status)
    inside = from_error_body({"message": "no", "code": status}, status=None)

    for failure in (refused, inside):
        assert (failure.code, failure.disposition) == (code, disposition)
        assert failure.progress == "precommit"


@pytest.mark.parametrize(
    ("error", "code", "disposition"),
    [
        ({"code": "context_length_exceeded", "message": "x"}, "context_length", "permanent"),
        ({"code": "rate_limit_exceeded", "message": "x"}, "rate_limited", "retryable"),
        ({"type": "authentication_error", "message": "x"}, "auth", "permanent"),
        ({"type": "overloaded_error", "message": "x"}, "provider_error", "retryable"),
        ({"type": "server_error", "message": "x"}, "provider_error", "retryable"),
        ({"type": "invalid_request_error", "message": "x"}, "provider_error", "permanent"),
        ({"status": "UNAVAILABLE", "message": "x"}, "provider_error", "retryable"),
        ({"message": "the request timed out"}, "timeout", "retryable"),
        ({"message": "something"}, "provider_error", "unknown"),
        ("something", "provider_error", "unknown"),
        (["something"], "provider_error", "unknown"),
    ],
)
def test_where_no_status_is_given_the_words_say_it(error: Any, code: str, disposition: str) -> None:
    failure = from_error_body(error, status=None)

    assert (failure.code, failure.disposition) == (code, disposition)
    assert failure.detail


def test_a_full_window_is_permanent_under_any_status() -> None:
    failure = from_error_body({"message": "maximum context length is 9"}, status=500)

    assert (failure.code, failure.disposition) == ("context_length", "permanent")


def test_a_server_may_say_that_asking_again_is_useless() -> None:
    failure = from_error_body({"message": "x"}, status=429, headers={"x-should-retry": "false"})

    assert failure.disposition == "permanent"


@pytest.mark.parametrize(
    ("headers", "error", "seconds"),
    [
        ({}, {}, None),
        ({"retry-after": "2"}, {}, 2.0),
        ({"retry-after": "0.5"}, {}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, {}, 1.5),
        ({"retry-after": "soon"}, {"retry_after": 3}, 3.0),
        ({"retry-after": "-1"}, {}, None),
        ({"retry-after": "1e400"}, {}, None),
        ({"retry-after": "1000000000"}, {}, 1e9),
        ({"retry-after": "9" * 400}, {}, None),
        ({}, {"retry_after": 10**400}, None),
        ({}, {"retry_after": "4"}, 4.0),
        ({}, {"retry_after_ms": 250}, 0.25),
        ({}, {"metadata": {"retry_after": 2}}, 2.0),
        ({}, {"metadata": {"headers": {"Retry-After": "7"}}}, 7.0),
        ({}, {"details": [{"x": 1}, {"retryDelay": "6s"}]}, 6.0),
        ({}, {"retry_after": True, "metadata": [], "details": {}}, None),
    ],
)
def test_how_long_to_wait_is_found_where_it_is_said(
    headers: dict[str, str], error: dict[str, Any], seconds: float | None
) -> None:
    assert asked_for(headers, error) == seconds


def test_a_date_is_a_time_to_wait_and_one_that_is_past_is_none() -> None:
    now = datetime.now(UTC)
    later = asked_for({"retry-after": format_datetime(now + timedelta(hours=1), usegmt=True)}, {})
    past = asked_for({"retry-after": format_datetime(now - timedelta(hours=1), usegmt=True)}, {})

    assert later is not None
    assert 3000 < later <= 3600
    assert past == 0.0
