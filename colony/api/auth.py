"""Auth: who may ask what. With tokens everybody has to show one; without, only this host may ask.

Whoever is no operator is let to the sessions of agents only, of which it finds its own.
"""

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from colony.api.problems import Problem, of_error
from colony.errors import Unauthorized
from colony.loopback import is_loopback
from colony.principals import Principal, Principals

OPEN: Final = ("/healthz", "/health", "/readyz")
FOR_ALL: Final = ("/v1/", "/openapi.json")

_WHO: Final = "principal"


class Auth:
    """Middleware that lets a request through or refuses it; whether one is alive anybody may ask.

    Without tokens a request must name this host in `Host`: a browser that was lured to a name that
    points here names that one instead.
    """

    def __init__(
        self, app: ASGIApp, principals: Principals, open_paths: Iterable[str] = OPEN
    ) -> None:
        self._app = app
        self._principals = principals
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or answer with the problem."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                who = self._admitted(Headers(scope=scope), scope["path"])
            except Problem as problem:
                await problem.response()(scope, receive, send)
                return
            scope.setdefault("state", {})[_WHO] = who
        await self._app(scope, receive, send)

    def _admitted(self, headers: Headers, path: str) -> Principal:
        host = headers.get("host", "")
        if not self._principals.closed and not is_loopback(_without_port(host)):
            raise Problem(421, "host_refused", f"{host!r} is not a name of this host")
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        try:
            who = self._principals.who(shown.strip() if scheme.lower() == "bearer" else None)
        except Unauthorized as error:
            problem = of_error(error)
            problem.headers["WWW-Authenticate"] = 'Bearer realm="colony"'
            raise problem from None
        if not who.operator and not path.startswith(FOR_ALL):
            raise Problem(403, "forbidden", "this is for operators")
        return who


def principal_of(request: Request) -> Principal:
    """Who asks."""
    found: Principal = request.scope["state"][_WHO]
    return found


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
