"""The intake: messages that are posted over HTTP, each a birth once for its id.

Every process that hosts the cell listens, as far as its host lets it: of several on one host the
first has the port, and the next takes over when it is gone.
"""

import asyncio
import hmac
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import uvicorn
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from colony.body import Body, Entry, Frozen, explain
from colony.envelope import Emission, new_id
from colony.errors import (
    Backlogged,
    BodyTooLarge,
    ColonyError,
    GuardReused,
    InvalidInput,
    ServerUnavailable,
)
from colony.host import Source
from colony.loopback import is_loopback
from workers.proxy.messaging import FIRST_RETRY_S, Pause

REQUEST_BYTES: Final = 1 << 20
GRACE_S: Final = 5

_STATUS: Final[tuple[tuple[type[ColonyError], int], ...]] = (
    (Backlogged, 503),
    (ServerUnavailable, 503),
    (GuardReused, 409),
    (BodyTooLarge, 413),
    (ColonyError, 400),
)


class Posted(Frozen):
    """A message as it is posted. Without a `message_id` each is a new one."""

    chat_id: int | Annotated[str, Field(min_length=1, max_length=256)]
    text: Annotated[str, Field(min_length=1)]
    message_id: int | Annotated[str, Field(min_length=1, max_length=256)] | None = None
    user_id: int | Annotated[str, Field(min_length=1, max_length=256)] | None = None


class Intake:
    """What listens at `host` and `port`; `address` tells where, once it does."""

    def __init__(self, host: str, port: int, token: str, *, pause: Pause) -> None:
        self.address: str | None = None
        self._place = host, port
        self._token = token
        self._pause = pause

    async def run(self, source: Source) -> None:
        """Listen until cancelled; where the port is taken, try again after a while."""
        told = False
        while True:
            try:
                listening = _bind(*self._place)
            except OSError as error:
                if not told:
                    source.log.info(
                        "port_taken", listen=self._place, detail=os.strerror(error.errno or 0)
                    )
                    told = True
                await self._pause(FIRST_RETRY_S)
                continue
            with listening:
                await self._serve(listening, source)

    async def _serve(self, listening: socket.socket, source: Source) -> None:
        host, port, *_ = listening.getsockname()
        named = f"[{host}]" if ":" in host else host
        self.address = f"http://{named}:{port}"
        source.log.info("proxy_listening", address=self.address)

        async def take(request: Request) -> Response:
            return await self._answer(request, source)

        http = _Quiet(
            uvicorn.Config(
                Starlette(routes=[Route("/message", take, methods=["POST"])]),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        serving = asyncio.create_task(http.serve(sockets=[listening]))
        try:
            await asyncio.shield(serving)
        finally:
            self.address = None
            http.should_exit = True
            await serving

    async def _answer(self, request: Request, source: Source) -> Response:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        try:
            posted = _read(await _body(request))
            guard, session = f"message {_id(posted)}", str(posted.chat_id)
            trace_id = await source.admit(_asked(posted), guard=guard, session=session)
        except ColonyError as error:
            return _problem_of(error)
        return JSONResponse({"trace_id": trace_id}, 202)

    def _refusal(self, request: Request) -> Response | None:
        if not self._token:
            # A browser that was lured to a name that points here names that one instead.
            named = request.url.hostname or ""
            if is_loopback(named):
                return None
            return _problem(421, "host_refused", f"{named!r} is not a name of this host")
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        given = f"{scheme.lower()} {shown.strip()}".encode()
        if hmac.compare_digest(given, f"bearer {self._token}".encode()):
            return None
        challenge = {"WWW-Authenticate": 'Bearer realm="proxy"'}
        return _problem(401, "unauthorized", "show the token of this proxy", challenge)


async def _body(request: Request) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > REQUEST_BYTES:
            raise BodyTooLarge(size=len(data), limit=REQUEST_BYTES)
    return bytes(data)


def _read(data: bytes) -> Posted:
    try:
        return Posted.model_validate_json(data)
    except ValidationError as error:
        raise InvalidInput(detail=explain(error)) from None


def _id(posted: Posted) -> str:
    # Each chat numbers its messages as it likes, and 1 is not "1".
    named = posted.message_id if posted.message_id is not None else new_id()
    return f"{posted.chat_id!r} {named!r}"


def _asked(posted: Posted) -> Emission:
    named = posted.model_dump(include={"chat_id", "message_id", "user_id"}, exclude_none=True)
    return Emission(hop={"platform": "http", **named}, body=Body.of(Entry.say("user", posted.text)))


def _problem_of(error: ColonyError) -> Response:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    after = error.facts.get("retry_after_s", 1) if status == 503 else None
    headers = {} if after is None else {"Retry-After": str(after)}
    return _problem(status, error.code, str(error), headers)


def _problem(
    status: int, code: str, detail: str, headers: dict[str, str] | None = None
) -> Response:
    return JSONResponse({"code": code, "detail": detail}, status, headers)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


class _Quiet(uvicorn.Server):
    """A server that leaves signals to whoever runs the loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
