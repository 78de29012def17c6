"""Anthropic messages: the Messages API of Anthropic and of every server that speaks it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

import httpx2
from anthropic import (
    AnthropicError,
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
    AsyncStream,
    Omit,
)
from pydantic import JsonValue

from workers.llm.answers.chunks import Assembly
from workers.llm.answers.events import EventReader
from workers.llm.answers.json_text import parse
from workers.llm.answers.reading import Asked, read_assembly
from workers.llm.provider import Failure, Listener, Progress, Reply, Request, Witness
from workers.llm.servers.bounded_client import (
    BoundedClient,
    Patience,
    drain,
    is_whole,
    pieces,
    read_whole,
    seen_by,
)
from workers.llm.servers.broken_calls import broken, refused
from workers.llm.servers.message_blocks import to_body
from workers.llm.servers.message_events import Translation

PATH = "/v1/messages"


class AnthropicMessages:
    """A client of one server, with one attempt for each request, streamed where `patience` says
    how long a stream is waited for.

    An empty key sends no Authorization header. An empty `base_url` is Anthropic's own.
    """

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str,
        headers: Mapping[str, str],
        timeout_s: float,
        patience: Patience | None = None,
    ) -> None:
        self._client = AsyncAnthropic(
            # Without any key the client takes one from the environment.
            api_key=api_key or "none",
            base_url=base_url or None,
            default_headers=dict(headers),
            max_retries=0,
            timeout=timeout_s,
            http_client=BoundedClient(timeout=timeout_s),
        )
        self._withheld: dict[str, str | Omit] = {} if api_key else {"Authorization": Omit()}
        self._patience = patience

    async def complete(self, request: Request, witness: Witness) -> Reply:
        """The server's answer to `request`."""
        body = to_body(request, {} if self._patience is None else {"stream": True})
        if isinstance(body, Failure):
            return body
        answer = _Answer()
        try:
            with seen_by(witness.sent):
                if self._patience is None:
                    answer.take_whole(await self._whole(body))
                else:
                    await self._stream(body, answer, witness, self._patience)
        except (AnthropicError, httpx2.HTTPError, TimeoutError, ValueError) as error:
            # An answer that has ended is whole, whatever becomes of the connection.
            if not answer.finished:
                return _failure(error, answer.progress)
        return answer.read(request, body)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _whole(self, body: dict[str, JsonValue]) -> str:
        response = await self._client.post(
            PATH, body=body, cast_to=httpx2.Response, options={"headers": self._withheld}
        )
        return response.text

    async def _stream(
        self, body: dict[str, JsonValue], answer: "_Answer", listener: Listener, patience: Patience
    ) -> None:
        begun_by = asyncio.get_running_loop().time() + patience.first_byte_s
        async with asyncio.timeout_at(begun_by):
            response = await self._open(body)
        if is_whole(response):
            async with asyncio.timeout_at(begun_by):
                answer.take_whole((await read_whole(response)).text)
            return
        incoming = pieces(response, first_byte_by=begun_by, idle_s=patience.idle_s)
        async with aclosing(incoming):
            await answer.hear(incoming, listener)
            await drain(incoming)

    async def _open(self, body: dict[str, JsonValue]) -> httpx2.Response:
        stream = await self._client.post(
            PATH,
            body=body,
            cast_to=object,
            options={"headers": self._withheld, "timeout": httpx2.Timeout(None)},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        return stream.response


class _Answer:
    """An answer while it comes."""

    def __init__(self) -> None:
        self._assembly = Assembly()
        self._translation = Translation()
        self._unreadable = False

    @property
    def finished(self) -> bool:
        """Whether the provider said why the answer ends."""
        return self._assembly.finished

    @property
    def progress(self) -> Progress:
        """How much of the answer there is."""
        return "visible" if self._assembly.visible else "precommit"

    async def hear(self, incoming: AsyncIterator[bytes], listener: Listener) -> None:
        """The events of a stream are taken in, and the listener is told, until the answer ends."""
        reader = EventReader()
        async for piece in incoming:
            for event in reader.feed(piece):
                if event.error:
                    self._assembly.add_event(event)
                else:
                    await self._take(parse(event.data), listener)
                if self._translation.done or self._assembly.error:
                    return

    def take_whole(self, text: str) -> None:
        """The answer is a message that came in one piece."""
        message = parse(text)
        if not isinstance(message, dict) or not {"content", "error"} & set(message):
            self._unreadable = True
            return
        for chunk in self._translation.whole(message):
            self._assembly.add(chunk)

    def read(self, request: Request, body: Mapping[str, JsonValue]) -> Reply:
        """What the answer says, by the rules for every answer."""
        if self._unreadable:
            detail = "the response is no message"
            return Failure("provider_error", detail, kind="not_json", progress="precommit")
        limit = body.get("max_tokens")
        asked = Asked(
            model=request.generation.model,
            seed=request.seed,
            offered=frozenset(tool.name for tool in request.tools),
            max_tokens=limit if isinstance(limit, int) else None,
        )
        return read_assembly(self._assembly, asked, done=self._translation.done)

    async def _take(self, event: JsonValue, listener: Listener) -> None:
        if not isinstance(event, dict):
            self._assembly.error = "an event of the stream cannot be read"
            return
        for chunk in self._translation.chunks(event):
            self._assembly.add(chunk)
        heard = self._translation.heard(event)
        if heard.reasoning:
            await listener.reasoning(heard.reasoning)
        if heard.text:
            await listener.text(heard.text)


def _failure(error: Exception, progress: Progress) -> Failure:
    """The failure that an exception of the client stands for."""
    if isinstance(error, APIStatusError):
        return refused(error.response)
    return broken(error, progress, slow=APITimeoutError, lost=APIConnectionError)
