"""Requests: how a request is read. What it does not have to say it must not say."""

import asyncio
import json
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from starlette.requests import ClientDisconnect, Request

from colony.access import Access
from colony.api.problems import Problem
from colony.body import explain

MAX_REQUEST_BYTES: Final = 10 * 1024 * 1024
BODY_TIMEOUT_S = 30.0
# Well within the id of an entry of a stream, which is two numbers of 64 bits.
MAX_NUMBER: Final = 2**63 - 1

Limit = Annotated[int, Field(ge=1, le=1000)]
Millisecond = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


class Query(BaseModel):
    """The query of a request, closed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, request: Request) -> Self:
        """The query of `request`; raises a Problem `bad_query` with everything wrong about it."""
        pairs = request.query_params.multi_items()
        values = dict(pairs)
        if len(values) < len(pairs):
            raise Problem(400, "bad_query", "a parameter is given twice")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise Problem(400, "bad_query", _in_words(error)) from None


class NoQuery(Query):
    """No parameter is taken."""


def access_of(request: Request) -> Access:
    """The colony that this application gives access to."""
    access: Access = request.app.state.access
    return access


async def json_object(request: Request) -> dict[str, JsonValue]:
    """The JSON object in the body of `request`; raises a Problem where there is none.

    No more than the limit is ever held, and a body that is slow to come is not waited for.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, "unsupported_media_type", "a body is application/json")
    data = await _in_time(request)
    try:
        value: Any = json.loads(data, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Problem(400, "invalid_json", "the body is not a JSON object")
    return value


async def _in_time(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read(request)
    except TimeoutError:
        detail = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        headers = {"Connection": "close"}
        raise Problem(408, "request_timeout", detail, headers=headers) from None


async def _read(request: Request) -> bytes:
    too_large = Problem(
        413,
        "body_too_large",
        f"a request has at most {MAX_REQUEST_BYTES} bytes",
        headers={"Connection": "close"},
    )
    asks_first = "expect" in request.headers
    if asks_first and int(request.headers.get("content-length", 0)) > MAX_REQUEST_BYTES:
        raise too_large
    data, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            # Who is cut off while sending may never see the answer: so much is read and dropped.
            if size > 2 * MAX_REQUEST_BYTES:
                break
            if size <= MAX_REQUEST_BYTES:
                data += chunk
    except ClientDisconnect:
        raise Problem(400, "body_read", "the body did not arrive as a whole") from None
    if size > MAX_REQUEST_BYTES:
        raise too_large
    return bytes(data)


def idempotency_key(request: Request) -> str | None:
    """The key under which a repeat is told the first answer, where there is one."""
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= 255 and key.isprintable()):
        detail = "an idempotency key has 1 to 255 printable characters"
        raise Problem(400, "invalid_idempotency_key", detail)
    return key


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice in one object")
    return values


def _in_words(error: ValidationError) -> str:
    return explain(error).replace("Extra inputs are not permitted", "no such parameter")
