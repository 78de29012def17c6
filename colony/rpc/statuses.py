"""Statuses: what an error of colony is to a client of gRPC."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import grpc
from grpc.aio import ServicerContext

from colony.errors import (
    AgentNotFound,
    ColonyError,
    CursorExpired,
    CursorMalformed,
    FollowerLagging,
    GuardReused,
    InvalidArgument,
    RunRefused,
    ServerStopping,
    ServerUnavailable,
    ServerUnfit,
    SessionNotFound,
    TopologyMissing,
    Unauthorized,
)

# Where the stable code of an error stands.
CODE: Final = "colony-code"

# A sentence may repeat what a client has sent, and a header that is too long hides the status.
LONGEST: Final = 500

_STATUS: Final[Mapping[type[ColonyError], grpc.StatusCode]] = {
    Unauthorized: grpc.StatusCode.UNAUTHENTICATED,
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    CursorMalformed: grpc.StatusCode.INVALID_ARGUMENT,
    GuardReused: grpc.StatusCode.INVALID_ARGUMENT,
    AgentNotFound: grpc.StatusCode.NOT_FOUND,
    SessionNotFound: grpc.StatusCode.NOT_FOUND,
    RunRefused: grpc.StatusCode.FAILED_PRECONDITION,
    CursorExpired: grpc.StatusCode.OUT_OF_RANGE,
    FollowerLagging: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ServerStopping: grpc.StatusCode.UNAVAILABLE,
    ServerUnavailable: grpc.StatusCode.UNAVAILABLE,
    ServerUnfit: grpc.StatusCode.UNAVAILABLE,
    TopologyMissing: grpc.StatusCode.UNAVAILABLE,
}


def status_of(error: ColonyError) -> grpc.StatusCode:
    """The status of an error; INTERNAL for what no client can have caused."""
    found = (status for kind, status in _STATUS.items() if isinstance(error, kind))
    return next(found, grpc.StatusCode.INTERNAL)


def sentence_of(error: ColonyError) -> str:
    """What an error says, cut to a length that every client takes."""
    told = str(error)
    return told if len(told) <= LONGEST else f"{told[:LONGEST]}..."


async def end(context: "ServicerContext[Any, Any]", error: ColonyError) -> NoReturn:
    """End a call with an error."""
    trailing = ((CODE, error.code),)
    await context.abort(status_of(error), sentence_of(error), trailing_metadata=trailing)
    raise AssertionError("a call that was aborted goes on")
