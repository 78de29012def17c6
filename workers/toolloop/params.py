"""Params: what a tree may set for the handlers of a tool loop."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Positive = Annotated[int, Field(ge=1)]


class HandlerParams(BaseModel):
    """The params of a handler, closed; those of the cell around it are let through."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    external_timeout_ms: int | None = None
    max_concurrency: int | None = None

    @classmethod
    def read(cls, params: Mapping[str, JsonValue]) -> Self:
        """The params as written in the tree; raises ValueError where one is misspelled."""
        return cls.model_validate(params)


class ThreadParams(HandlerParams):
    """Where the rows of questions are kept."""

    table: str = "thread"


class ConversationParams(HandlerParams):
    """Where the conversations of sessions are kept; without it every question stands alone."""

    conversation: str | None = None
