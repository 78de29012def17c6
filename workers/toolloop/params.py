"""Params: what a tree may set for the handlers of a tool loop."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


class HandlerParams(BaseModel):
    """The params of a handler, closed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ThreadParams(HandlerParams):
    """Where the rows of questions are kept."""

    table: str = "thread"


class ConversationParams(HandlerParams):
    """Where the conversations of sessions are kept; without it every question stands alone."""

    conversation: str | None = None
