"""Chat completions: the protocol of OpenAI and of every server that is compatible with it."""

from collections.abc import Mapping
from typing import Any

import httpx2
from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    Omit,
    OpenAIError,
)
from pydantic import JsonValue

from workers.llm.failures import from_error_body
from workers.llm.provider import Failure, Reply, Request
from workers.llm.reading import parse, read
from workers.llm.thread import Message, to_messages

PATH = "/chat/completions"
MAX_RESPONSE_BYTES = 16 << 20

# Headers that tell how a body came, not what it is.
_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class _BoundedClient(DefaultAsyncHttpxClient):
    """A client for which a response above the limit is a connection that breaks."""

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        response = await super().send(request, stream=True, **options)
        content = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_RESPONSE_BYTES:
                    detail = f"the response has more than {MAX_RESPONSE_BYTES} bytes"
                    raise httpx2.ReadError(detail, request=request)
        finally:
            await response.aclose()
        headers = [pair for pair in response.headers.multi_items() if pair[0] not in _OF_THE_WIRE]
        return httpx2.Response(
            response.status_code,
            headers=headers,
            content=bytes(content),
            request=response.request,
        )


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
            http_client=_BoundedClient(timeout=timeout_s),
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
                PATH, body=body, cast_to=httpx2.Response, options={"headers": self._withheld}
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
        return read(answer.text, model=request.generation.model, seed=request.seed)

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
    text = error.response.text
    body = parse(text)
    if isinstance(body, dict) and body:
        return body.get("error") or body
    return text.strip() or str(error)
