"""Messages: the way in. A message is admitted, and on request its end is waited for."""

from typing import Annotated, Final

from pydantic import Field, JsonValue, StrictInt, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import Access, promptly
from colony.api.problems import Problem
from colony.api.requests import Query, access_of, idempotency_key, json_object
from colony.body import Body, Frozen, explain
from colony.envelope import MAX_TTL, Headers

MAX_WAIT_S: Final = 300.0
MAX_TIMEOUT_S: Final = 30 * 24 * 60 * 60

Seconds = Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)]

# Code of a field that is wrong (meclaw, ingress).
_CODES: Final = {
    "target": "invalid_target",
    "body": "invalid_ubf_body",
    "headers": "invalid_headers",
    "hop": "invalid_hop",
    "ttl": "invalid_ttl",
    "wait": "invalid_wait",
    "timeout_s": "invalid_timeout",
}


class Message(Frozen):
    """What a client sends. `headers` become the context of the first envelope."""

    target: Annotated[str, Field(min_length=1)]
    body: JsonValue
    headers: Headers | None = None
    hop: Headers | None = None
    ttl: Annotated[StrictInt, Field(ge=1, le=MAX_TTL)] | None = None
    wait: Seconds | None = None
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)] | None = None


class Waiting(Query):
    """`wait` may stand in the query as well."""

    wait: Seconds | None = None


async def post_message(request: Request) -> Response:
    """Admit a message: 202 with its ids, or 200 with what came of it where that was waited for."""
    access = access_of(request)
    in_query = Waiting.of(request).wait
    message = _parse(await json_object(request))
    if in_query is not None and message.wait is not None:
        raise Problem(400, "bad_query", "wait is given twice")
    birth = await promptly(
        access.admission.admit(
            message.target,
            Body.parse(message.body),
            context=message.headers,
            hop=message.hop,
            ttl=message.ttl,
            guard=_guard(request),
            timeout_s=message.timeout_s,
        )
    )
    told: dict[str, JsonValue] = {"message_id": birth.trace_id, "trace_id": birth.trace_id}
    wait_s = message.wait if in_query is None else in_query
    if wait_s is not None and await access.endings.wait(birth.trace_id, wait_s):
        return JSONResponse({**told, **await promptly(_ending(access, birth.trace_id))})
    return JSONResponse(told, 202)


async def _ending(access: Access, trace_id: str) -> dict[str, JsonValue]:
    trace = await access.traces.get(trace_id)
    outputs: list[JsonValue] = [*await access.traces.outputs(trace_id)]
    return {
        "state": trace.state,
        "cause": trace.cause,
        "reason": trace.reason,
        "outputs": outputs,
    }


def _parse(value: dict[str, JsonValue]) -> Message:
    try:
        return Message.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        code = _CODES.get(str(first["loc"][0]), "unknown_field")
        detail = explain(error).replace("Extra inputs are not permitted", "no such field")
        raise Problem(422, code, detail) from None


def _guard(request: Request) -> str | None:
    key = idempotency_key(request)
    return None if key is None else f"http:{key}"
