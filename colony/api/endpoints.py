"""Endpoints: what is served where, as data: the routes and the document of the interface are it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from colony.api.requests import NoQuery, Query

Handler = Callable[[Request], Awaitable[Response]]

EVENT_STREAM: Final = "text/event-stream"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets: a model where it is known, JSON of a kind the docs tell otherwise."""

    model: type[BaseModel] | None = None
    media_type: str = JSON


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One call. `answers` are what it succeeds with, by status; `headers` are those it reads.

    Its `name` is that of its handler, unless two have the same.
    """

    method: str
    path: str
    serve: Handler
    query: type[Query] = NoQuery
    body: type[BaseModel] | None = None
    answers: Mapping[int, tuple[Answer, ...]] = field(default_factory=lambda: {200: (Answer(),)})
    headers: tuple[str, ...] = ()
    name: str = ""

    @property
    def route(self) -> Route:
        """The endpoint as the application serves it."""
        return Route(self.path, self.serve, methods=[self.method])

    @property
    def operation_id(self) -> str:
        """What a generated client calls it."""
        return self.name or self.serve.__name__

    @property
    def summary(self) -> str:
        """What it does, in one sentence."""
        return (self.serve.__doc__ or "").strip().partition("\n")[0]
