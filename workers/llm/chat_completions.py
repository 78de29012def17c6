"""Chat completions: the protocol of OpenAI and of every server that is compatible with it."""

from collections.abc import Mapping

from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    Omit,
    OpenAIError,
)
from pydantic import JsonValue

from workers.llm.failures import from_error_body
from workers.llm.provider import Failure, Reply, Request
from workers.llm.reading import read
from workers.llm.thread import Message, to_messages

PATH = "/chat/completions"


class ChatCompletions:
    """A client of one server, with one attempt for each request and no streaming.

    An empty key sends no Authorization header. An empty `base_url` is OpenAI's own.
    """

    def __init__(
        self, *, api_key: str, base_url: str, headers: Mapping[str, str], timeout_s: float
    ) -> None:
        self._client = AsyncOpenAI(
            # The client refuses to be made without a key, even where none is ever sent.
            api_key=api_key or "none",
            base_url=base_url or None,
            default_headers=dict(headers),
            max_retries=0,
            timeout=timeout_s,
        )
        self._withheld: dict[str, str | Omit] = {} if api_key else {"Authorization": Omit()}

    async def complete(self, request: Request) -> Reply:
        """The server's answer to `request`."""
        messages = to_messages(request.entries, request.system)
        if isinstance(messages, Failure):
            return messages
        body = to_body(messages, request)
        try:
            answer = await self._client.post(
                PATH, body=body, cast_to=object, options={"headers": self._withheld}
            )
        except APITimeoutError:
            return Failure("timeout", "the server took too long", kind="timeout")
        except APIConnectionError as error:
            detail = f"{error} {error.__cause__ or ''}".strip()
            return Failure("provider_error", detail, kind="connection")
        except APIStatusError as error:
            return from_error_body(_error_of(error), status=error.status_code)
        except (OpenAIError, ValueError) as error:
            return Failure("provider_error", f"the response cannot be read: {error}")
        return read(answer, model=request.generation.model, seed=request.seed)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def to_body(messages: list[Message], request: Request) -> dict[str, JsonValue]:
    """The body of the request; a null in `provider_extra` takes a key out of it."""
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
        **generation.provider_extra,
    }
    return {name: value for name, value in body.items() if value is not None}


def _error_of(error: APIStatusError) -> JsonValue:
    # The client hands out what is inside `error`, or the whole body where there is no such key.
    body = error.body
    if isinstance(body, dict) and body:
        return {str(name): value for name, value in body.items()}
    return str(body or error)
