"""Chat completions: the protocol of OpenAI and of every server that is compatible with it."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import httpx2
from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AsyncStream,
    Omit,
    OpenAIError,
)
from pydantic import JsonValue

from workers.llm.answers.chunks import Heard
from workers.llm.answers.incoming import Incoming
from workers.llm.answers.reading import Asked, read_assembly, read_text
from workers.llm.asking.listening import Nobody
from workers.llm.provider import Answer, Failure, Listener, Progress, Reply, Request, Witness
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
from workers.llm.servers.chat_body import to_body
from workers.llm.servers.wire import Wire
from workers.llm.threads.thread import to_messages

PATH = "/chat/completions"

COUNTED: dict[str, JsonValue] = {"include_usage": True}


class ChatCompletions:
    """A client of one server, with one attempt for each request, streamed where `patience` says
    how long a stream is waited for.

    An empty key sends no Authorization header. An empty `base_url` is OpenAI's own. `text_calls`
    takes calls that stand in the text for calls.
    """

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str,
        headers: Mapping[str, str],
        timeout_s: float,
        patience: Patience | None = None,
        wire: Wire | None = None,
        text_calls: bool = False,
    ) -> None:
        self._client = AsyncOpenAI(
            # The client refuses to be made without a key, even where none is ever sent.
            api_key=api_key or "none",
            base_url=base_url or None,
            default_headers=dict(headers),
            max_retries=0,
            timeout=timeout_s,
            http_client=BoundedClient(timeout=timeout_s),
        )
        self._withheld: dict[str, str | Omit] = {} if api_key else {"Authorization": Omit()}
        self._patience = patience
        self._wire = wire or Wire()
        self._text_calls = text_calls
        # Whether the server takes the wish to count what it streams.
        self._counts = True

    async def complete(self, request: Request, witness: Witness) -> Reply:
        """The server's answer to `request`."""
        messages = to_messages(request.entries, request.system)
        if isinstance(messages, Failure):
            return messages
        streaming = {} if self._patience is None else self._streaming()
        body = to_body(self._wire.written(messages), request, streaming)
        asked = _asked(request, body, text_calls=self._text_calls)
        with seen_by(witness.sent):
            if self._patience is None:
                return await self._whole(body, asked)
            return await self._streamed(body, asked, witness, self._patience)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _whole(self, body: dict[str, JsonValue], asked: Asked) -> Reply:
        try:
            answer = await self._client.post(
                PATH, body=body, cast_to=httpx2.Response, options={"headers": self._withheld}
            )
        except (OpenAIError, ValueError) as error:
            return _failure(error, "precommit")
        return read_text(answer.text, asked)

    async def _streamed(
        self, body: dict[str, JsonValue], asked: Asked, listener: Listener, patience: Patience
    ) -> Reply:
        incoming = Incoming()
        # A text that may be a call is no text yet.
        hearing = Nobody() if asked.text_calls else listener
        begun_by = asyncio.get_running_loop().time() + patience.first_byte_s
        try:
            async with asyncio.timeout_at(begun_by):
                response = await self._open(body)
            if is_whole(response):
                async with asyncio.timeout_at(begun_by):
                    whole = await read_whole(response)
                return read_text(whole.text, asked)
            incoming_pieces = pieces(response, first_byte_by=begun_by, idle_s=patience.idle_s)
            async with aclosing(incoming_pieces):
                async for piece in incoming_pieces:
                    for heard in incoming.feed(piece):
                        await _tell(hearing, heard)
                    if incoming.over:
                        await drain(incoming_pieces)
                        break
            for heard in incoming.end():
                await _tell(hearing, heard)
        except (OpenAIError, httpx2.HTTPError, TimeoutError, ValueError) as error:
            # An answer that has ended is whole, whatever becomes of the connection.
            if not incoming.assembly.finished:
                return _failure(error, "visible" if incoming.assembly.visible else "precommit")
        reply = read_assembly(incoming.assembly, asked, done=incoming.done)
        if asked.text_calls and isinstance(reply, Answer) and reply.text:
            await listener.text(reply.text)
        return reply

    def _streaming(self) -> dict[str, JsonValue]:
        return {"stream": True, **({"stream_options": COUNTED} if self._counts else {})}

    async def _open(self, body: dict[str, JsonValue]) -> httpx2.Response:
        """The beginning of a streamed response; a server that cannot count is not asked to."""
        try:
            return await self._post(body)
        except APIStatusError as error:
            if "stream_options" not in body or not _refuses_to_count(error):
                raise
        self._counts = False
        return await self._post({n: v for n, v in body.items() if n != "stream_options"})

    async def _post(self, body: dict[str, JsonValue]) -> httpx2.Response:
        stream = await self._client.post(
            PATH,
            body=body,
            cast_to=object,
            options={"headers": self._withheld, "timeout": httpx2.Timeout(None)},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        return stream.response


def _asked(request: Request, body: Mapping[str, JsonValue], *, text_calls: bool) -> Asked:
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return Asked(
        model=request.generation.model,
        seed=request.seed,
        offered=frozenset(tool.name for tool in request.tools),
        max_tokens=limit if isinstance(limit, int) else None,
        text_calls=text_calls,
    )


async def _tell(listener: Listener, heard: Heard) -> None:
    if heard.reasoning:
        await listener.reasoning(heard.reasoning)
    if heard.text:
        await listener.text(heard.text)


def _refuses_to_count(error: APIStatusError) -> bool:
    said = error.response.text
    return error.status_code in (400, 422) and ("stream_options" in said or "include_usage" in said)


def _failure(error: Exception, progress: Progress) -> Failure:
    """The failure that an exception of the client stands for."""
    if isinstance(error, APIStatusError):
        return refused(error.response)
    return broken(error, progress, slow=APITimeoutError, lost=APIConnectionError)
