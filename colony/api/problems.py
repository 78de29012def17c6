"""Problems: what a client is told when its request cannot be served (RFC 9457)."""

from typing import Final

from pydantic import JsonValue
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from colony.errors import (
    AgentNotFound,
    AskNotPending,
    Backlogged,
    BlobUnavailable,
    BodyError,
    BodyTooLarge,
    ColonyError,
    CursorExpired,
    CursorMalformed,
    DeadLetterNotFound,
    DocumentNotFound,
    EnvelopeError,
    FollowerLagging,
    GuardReused,
    InvalidArgument,
    RequestNotFound,
    RetryIneligible,
    RetryPending,
    RoundNotFound,
    ServerFull,
    ServerStopping,
    ServerUnavailable,
    ServerUnfit,
    SessionAwaiting,
    SessionBusy,
    SessionNotFound,
    StaleRunControl,
    ThreadNotFound,
    TopologyMissing,
    TraceNotFound,
    Unauthorized,
)
from colony.log import Outage, get_logger

MEDIA_TYPE: Final = "application/problem+json"

log = get_logger("colony.api")

# The first that fits decides.
_STATUS: Final[tuple[tuple[type[ColonyError], int], ...]] = (
    (BodyTooLarge, 413),
    (BodyError, 422),
    (EnvelopeError, 422),
    (BlobUnavailable, 422),
    (GuardReused, 422),
    (Unauthorized, 401),
    (InvalidArgument, 400),
    (CursorMalformed, 400),
    (CursorExpired, 410),
    (FollowerLagging, 429),
    (AgentNotFound, 404),
    (SessionNotFound, 404),
    (SessionBusy, 409),
    (SessionAwaiting, 409),
    (RetryPending, 409),
    (RetryIneligible, 409),
    (AskNotPending, 409),
    (StaleRunControl, 409),
    (ServerStopping, 503),
    (Backlogged, 429),
    (TraceNotFound, 404),
    (DeadLetterNotFound, 404),
    (RoundNotFound, 404),
    (ThreadNotFound, 404),
    (RequestNotFound, 404),
    (DocumentNotFound, 404),
    (ServerFull, 503),
    (ServerUnavailable, 503),
    (ServerUnfit, 503),
    (TopologyMissing, 503),
)
_OF_STATUS: Final = {404: "not_found", 405: "method_not_allowed"}
RETRY_AFTER_S: Final = "1"


class Problem(Exception):
    """A request that is refused for a reason of HTTP: a status, a stable code and a sentence."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: dict[str, str] | None = None,
        **more: JsonValue,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        # Whatever is away now may be back in a moment.
        again = {"Retry-After": RETRY_AFTER_S} if status == 503 else {}
        self.headers = {**again, **(headers or {})}
        self.more = more

    def response(self) -> JSONResponse:
        """The problem as a response."""
        content: dict[str, JsonValue] = {
            "type": f"urn:colony:error:{self.code}",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.more,
        }
        return JSONResponse(content, self.status, self.headers, MEDIA_TYPE)


def of_error(error: ColonyError) -> Problem:
    """The problem that an error of colony is to a client."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    again = error.facts.get("retry_after_s")
    headers = {} if again is None else {"Retry-After": str(again)}
    return Problem(status, error.code, str(error), headers=headers)


async def on_problem(request: Request, error: Exception) -> JSONResponse:
    """Answer a Problem."""
    assert isinstance(error, Problem)
    return error.response()


async def on_colony_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of colony."""
    assert isinstance(error, ColonyError)
    problem = of_error(error)
    if isinstance(error, (Backlogged, ServerFull, ServerUnfit)):
        if request.app.state.spells.begins(error.code):
            tell = log.warning if isinstance(error, Backlogged) else log.error
            tell(error.code, detail=problem.detail)
    elif isinstance(error, ServerUnavailable):
        Outage.report(log, error)
    elif problem.status >= 500:
        log.error(problem.code, path=request.url.path, detail=problem.detail)
    return problem.response()


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Answer what the router refuses."""
    assert isinstance(error, HTTPException)
    code = _OF_STATUS.get(error.status_code, "request_refused")
    detail = f"{request.method} {request.url.path} is not served here"
    headers = dict(error.headers or {})
    return Problem(error.status_code, code, detail, headers=headers).response()


async def on_anything_else(request: Request, error: Exception) -> JSONResponse:
    """Answer a mistake of ours without telling more than that; the log has the rest."""
    return Problem(500, "internal_error", "colony made a mistake; its log says more").response()
