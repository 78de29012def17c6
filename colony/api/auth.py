"""Auth: who may ask. With a token everybody has to show it; without one, only this host may ask."""

import hmac
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from colony.api.problems import Problem
from colony.loopback import is_loopback

OPEN: Final = ("/healthz", "/health", "/readyz")


class Auth:
    """Middleware that lets a request through or refuses it; whether one is alive anybody may ask.

    Without a token a request must name this host in `Host`: a browser that was lured to a name
    that points here names that one instead.
    """

    def __init__(self, app: ASGIApp, token: str | None, open_paths: Iterable[str] = OPEN) -> None:
        self._app = app
        self._expected = None if token is None else f"bearer {token}".encode()
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or answer with the problem."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            problem = self._refusal(Headers(scope=scope))
            if problem is not None:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> Problem | None:
        if self._expected is None:
            host = headers.get("host", "")
            if is_loopback(_without_port(host)):
                return None
            return Problem(421, "host_refused", f"{host!r} is not a name of this host")
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        given = f"{scheme.lower()} {shown.strip()}".encode()
        if hmac.compare_digest(given, self._expected):
            return None
        challenge = {"WWW-Authenticate": 'Bearer realm="colony"'}
        return Problem(401, "unauthorized", "show the token of this colony", headers=challenge)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
