"""Broken calls: the failures that stand for a refusal, a silence and a connection that broke."""

import httpx2
from pydantic import JsonValue

from workers.llm.answers.failures import from_error_body
from workers.llm.answers.json_text import parse
from workers.llm.provider import Failure, Progress
from workers.llm.servers.bounded_client import ResponseTooLarge

# What a server that is asked again does again.
_LASTING = (ResponseTooLarge, httpx2.TooManyRedirects)


def refused(response: httpx2.Response) -> Failure:
    """The failure of a response that is no success."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return from_error_body(_error_of(response), status=response.status_code, headers=headers)


def too_slow(progress: Progress) -> Failure:
    """The failure of a call that was not answered in time."""
    return Failure(
        "timeout",
        "the server took too long",
        kind="timeout",
        disposition="retryable",
        progress=progress,
    )


def disconnected(error: Exception, progress: Progress) -> Failure:
    """The failure of a call whose connection broke, or that never had one."""
    lasting = any(isinstance(one, _LASTING) for one in (error, error.__cause__))
    return Failure(
        "provider_error",
        f"{error} {error.__cause__ or ''}".strip() or "the connection broke",
        kind="connection",
        disposition="unknown" if lasting else "retryable",
        progress=progress,
    )


def unreadable(error: Exception, progress: Progress) -> Failure:
    """The failure of a response that makes no sense."""
    detail = f"the response cannot be read: {error}"
    return Failure("provider_error", detail, progress=progress)


def _error_of(response: httpx2.Response) -> JsonValue:
    text = response.text
    body = parse(text)
    if isinstance(body, dict) and body:
        return body.get("error") or body
    return text.strip() or f"the server answers with status {response.status_code}"
