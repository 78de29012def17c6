"""The chat body: a request as chat completions take it."""

from collections.abc import Mapping

from pydantic import JsonValue

from workers.llm.provider import Request
from workers.llm.threads.thread import Message


def to_body(
    messages: list[Message], request: Request, streaming: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """The body of the request with what makes it a stream; a null in `provider_extra` takes a key
    out of it."""
    generation = request.generation
    tools: list[JsonValue] = [tool.definition for tool in request.tools]
    body: dict[str, JsonValue] = {
        "model": generation.model,
        "messages": [*messages],
        "temperature": generation.temperature,
        "max_tokens": generation.max_tokens,
        "reasoning": generation.reasoning,
        "reasoning_effort": generation.reasoning_effort,
        "tools": tools or None,
        **streaming,
        **generation.provider_extra,
    }
    return {name: value for name, value in body.items() if value is not None}
