"""Asking: what every call about agents is served with: the engine, whose it is, and its body."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from colony.api.auth import principal_of
from colony.api.requests import json_object
from colony.body import explain
from colony.engine import Engine
from colony.errors import InvalidArgument

M = TypeVar("M", bound=BaseModel)


def engine_of(request: Request) -> Engine:
    """The engine of this application."""
    engine: Engine = request.app.state.engine
    return engine


def owner_of(request: Request) -> str | None:
    """Whose sessions are to be found; None for everybody's."""
    return principal_of(request).owner


def session_id_of(request: Request) -> str:
    """The session that the path names."""
    return str(request.path_params["session_id"])


async def body_of(request: Request, model: type[M]) -> M:
    """The body of a request; one that has none is as if it were empty.

    Raises InvalidArgument for what the model does not know.
    """
    empty = request.headers.get("content-length", "0") == "0"
    given = (
        {} if empty and "transfer-encoding" not in request.headers else await json_object(request)
    )
    try:
        return model.model_validate(given)
    except ValidationError as error:
        detail = explain(error).replace("Extra inputs are not permitted", "no such field")
        raise InvalidArgument(detail=detail) from None
