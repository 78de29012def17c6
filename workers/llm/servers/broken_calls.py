"""Broken calls: the failures that stand for a refusal, a silence and a connection that broke."""

from dataclasses import replace

import httpx2
from pydantic import JsonValue

from colony.redaction import without_login
from workers.llm.answers.failures import from_error_body
from workers.llm.answers.json_text import parse
from workers.llm.provider import Failure, Progress
from workers.llm.servers.bounded_client import ResponseTooLarge

# What a server that is asked again does again.
_LASTING = (ResponseTooLarge, httpx2.TooManyRedirects)

# The statuses of a path, or of a way to ask for it, that the server does not know.
_NO_SUCH_PATH = frozenset({404, 405})


def refused(response: httpx2.Response) -> Failure:
    """The failure of a response that is no success."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    error, is_object = _error_of(response)
    failure = from_error_body(error, status=response.status_code, headers=headers)
    if is_object or response.status_code not in _NO_SUCH_PATH:
        return failure
    # Not a server of the protocol answers in this way, but one that has nothing at this path.
    asked = f"{response.request.method} {without_login(str(response.request.url))}"
    return replace(failure, detail=f"{asked} is answered with {failure.detail}")


def broken(
    error: Exception,
    progress: Progress,
    *,
    slow: type[Exception],
    lost: type[Exception],
) -> Failure:
    """The failure that an exception of a client stands for: `slow` is what its library raises for a
    server that takes too long, `lost` for any other trouble with the connection."""
    if isinstance(error, (slow, TimeoutError, httpx2.TimeoutException)):
        return too_slow(progress)
    if isinstance(error, (lost, httpx2.HTTPError)):
        return disconnected(error, progress)
    return unreadable(error, progress)


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


def _error_of(response: httpx2.Response) -> tuple[JsonValue, bool]:
    """What is said of an error, and whether it is an error object of the protocol."""
    text = response.text
    body = parse(text)
    if isinstance(body, dict) and body:
        error = body.get("error") or body
        return error, isinstance(error, dict) and "message" in error
    return text.strip() or f"status {response.status_code} and no text", False
