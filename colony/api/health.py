"""Health: whether this process lives, and whether the colony behind it can work."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import promptly
from colony.api.problems import Problem
from colony.api.requests import NoQuery, access_of
from colony.errors import ServerUnavailable, ServerUnfit


async def get_health(request: Request) -> Response:
    """200 as long as this process answers, whatever Redis does."""
    NoQuery.of(request)
    return JSONResponse({"status": "ok"})


async def get_ready(request: Request) -> Response:
    """200 where Redis takes work, a tree is applied, a router runs, every active cell has a host.

    A Redis that may evict work does not count, nor does one that is full or forbids writes. A cell
    that only some workers cannot start does not count as failed: what it is sent gets handled.
    """
    NoQuery.of(request)
    try:
        status = await promptly(access_of(request).status())
    except (ServerUnavailable, ServerUnfit) as error:
        raise Problem(503, error.code, str(error)) from None
    problems = status.problems
    if status.server:
        raise Problem(503, status.server[0].code, "; ".join(problems), problems=[*problems])
    if problems:
        raise Problem(503, "not_ready", "; ".join(problems), problems=[*problems])
    return JSONResponse({"status": "ready", "version": status.version})
