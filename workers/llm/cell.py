"""The llm cell: what a message says becomes one request to a model, what it answers one emission.

An answer is recorded before it is emitted, so an envelope that is handled again costs no second
call.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, SecretStr, model_validator

from colony.body import Body, Frozen
from colony.cell import Cell, Host
from colony.envelope import Emission, Envelope
from colony.errors import BodyError
from colony.redaction import REDACTED
from colony.topology.model import ToolDeclaration
from workers.llm import overrides, system_state
from workers.llm.provider import Answer, Failure, Generation, Provider, Reply, Request, Tool
from workers.llm.scripted import Scripted, ScriptedAnswer
from workers.llm.thread import to_entries

JOURNAL = "answer"

PositiveInt = Annotated[int, Field(ge=1)]


class Told(Frozen):
    """An answer as it is journalled."""

    answer: Answer
    started_at: int
    latency_ms: int


class Llm(Cell):
    """Ask a model and emit what it adds to the thread."""

    default_message_timeout_ms: ClassVar[int] = 1_200_000

    class Params(Generation):
        """Which model, where, and what it may be told. An empty key sends none."""

        provider: Literal["openai", "scripted", "extractive"]
        api_key: SecretStr = SecretStr("")
        base_url: str = ""
        http_referer: str = ""
        x_title: str = ""
        external_timeout_ms: PositiveInt = 110_000
        max_concurrency: PositiveInt = 16
        system_order: tuple[str, ...] = ()
        system_max_slots: PositiveInt = 256
        system_max_leaf_bytes: PositiveInt = 65_536
        system_writable: tuple[str, ...] = ()
        state_scope: Literal["session", "cell", "trace"] = "session"
        script: tuple[ScriptedAnswer, ...] = ()

        @model_validator(mode="after")
        def _fits_its_provider(self) -> Self:
            if self.provider == "openai" and not self.model:
                raise ValueError("provider openai needs a model")
            if bool(self.script) != (self.provider == "scripted"):
                raise ValueError("a script goes with provider scripted, and the other way round")
            return self

        @property
        def limits(self) -> system_state.Limits:
            """What the system state may hold."""
            return system_state.Limits(
                self.system_max_slots, self.system_max_leaf_bytes, self.system_writable
            )

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._provider: Provider | None = None

    async def start(self, host: Host) -> None:
        """The provider is ready; nothing is sent yet."""
        self._provider = _provider(self.params)

    async def stop(self) -> None:
        """The provider holds nothing open."""
        if self._provider is not None:
            await self._provider.close()
            self._provider = None

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """The new entries of the model, or the messages unchanged with what went wrong.

        A message without `messages` changes the system state and emits nothing.
        """
        recorded = await host.recall(JOURNAL)
        if recorded is None:
            request = await self._request(envelope, host)
            if request is None:
                return []
            told = request if isinstance(request, Failure) else await self._ask(request)
            if isinstance(told, Failure):
                return [self._failed(envelope, self._without_key(told), host)]
            # Where two hosts handled the envelope, both go on with the answer of the first.
            recorded = await host.record(JOURNAL, told.model_dump_json().encode())
        return [self._said(Told.model_validate_json(recorded))]

    async def _request(self, envelope: Envelope, host: Host) -> Request | Failure | None:
        body = envelope.body
        try:
            state = await self._state(body, host)
            if body.messages is None:
                return None
            if body.attachments:
                raise BodyError(detail="attachments cannot be sent to a model")
            return Request(
                entries=body.entries,
                system=system_state.render(state, self.params.system_order),
                tools=system_state.tools(state) or _declared(host.tools),
                generation=overrides.overlaid(self.params, state),
                seed=_seed(envelope),
            )
        except BodyError as error:
            return Failure("invalid_input", str(error), source="request")

    async def _state(self, body: Body, host: Host) -> dict[str, str]:
        """The state as this message leaves it; raises BodyError, with nothing changed."""
        scope, extra = self.params.state_scope, body.__pydantic_extra__
        change = system_state.parse(body.system or {})
        state = await host.state(scope)
        self.params.limits.check(change, state)
        change.put.update(overrides.parse(extra["params"]) if "params" in extra else {})
        wanted = change.applied_to(state)
        overrides.overlaid(self.params, wanted)
        system_state.tools(wanted)
        if wanted == state:
            return state
        return await host.update_state(scope, change.put, change.remove)

    async def _ask(self, request: Request) -> Told | Failure:
        assert self._provider is not None, "a cell is started before it handles"
        started_at, begun = time.time_ns() // 1_000_000, time.perf_counter()
        reply: Reply
        try:
            async with asyncio.timeout(self.params.external_timeout_ms / 1000):
                reply = await self._provider.complete(request)
        except TimeoutError:
            detail = f"no answer within {self.params.external_timeout_ms} ms"
            return Failure("timeout", detail, kind="timeout")
        if isinstance(reply, Failure):
            return reply
        latency_ms = round((time.perf_counter() - begun) * 1000)
        return Told(answer=reply, started_at=started_at, latency_ms=latency_ms)

    def _said(self, told: Told) -> Emission:
        answer = told.answer
        counts = {
            "tokens_prompt": answer.tokens_prompt,
            "tokens_completion": answer.tokens_completion,
        }
        meta: dict[str, JsonValue] = {
            "provider": self.params.provider,
            "model": answer.model,
            "response_id": answer.response_id,
            "latency_ms": told.latency_ms,
            "started_at": told.started_at,
        }
        hop: dict[str, JsonValue] = {
            "finish_reason": answer.finish_reason,
            "model": answer.model,
            **{name: count for name, count in counts.items() if count is not None},
        }
        return Emission(hop=hop, body=_body(to_entries(answer), meta))

    def _without_key(self, failure: Failure) -> Failure:
        # Some servers repeat the key that they refuse.
        key = self.params.api_key.get_secret_value()
        return replace(failure, detail=failure.detail.replace(key, REDACTED)) if key else failure

    def _failed(self, envelope: Envelope, failure: Failure, host: Host) -> Emission:
        host.log.warning("model_failed", **failure.to_json())
        meta: dict[str, JsonValue] = {
            "provider": self.params.provider,
            "model": self.params.model,
            "error": failure.to_json(),
        }
        hop: dict[str, JsonValue] = {"finish_reason": "error", "error_code": failure.code}
        return Emission(hop=hop, body=_body(envelope.body.messages or (), meta))


def _provider(params: Llm.Params) -> Provider:
    # Imported when they are needed: each takes longer to load than all the rest of a worker.
    match params.provider:
        case "openai":
            from workers.llm.chat_completions import ChatCompletions

            return ChatCompletions(
                api_key=params.api_key.get_secret_value(),
                base_url=params.base_url,
                headers=_attribution(params),
                timeout_s=params.external_timeout_ms / 1000,
            )
        case "extractive":
            from workers.llm.extractive import Extractive

            return Extractive(model=params.model or params.provider)
        case "scripted":
            return Scripted(params.script, model=params.model or params.provider)


def _attribution(params: Llm.Params) -> dict[str, str]:
    """The headers by which some servers attribute traffic."""
    named = {"HTTP-Referer": params.http_referer, "X-Title": params.x_title}
    return {name: value for name, value in named.items() if value}


def _declared(tools: Sequence[ToolDeclaration]) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            tool.name,
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            },
        )
        for tool in tools
    )


def _seed(envelope: Envelope) -> str:
    question = envelope.context.get("turn_id")
    if question is None:
        return envelope.id
    return json.dumps([question, envelope.context.get("iter")])


def _body(messages: Sequence[object], meta: Mapping[str, JsonValue]) -> Body:
    return Body.model_validate({"messages": tuple(messages), "meta": dict(meta)})
