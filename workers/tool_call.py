"""Tool calls: how a cell that is a tool reads its one call and answers it.

Whatever happens to a call, its id is answered: a loop that waits for the id must not wait for ever.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Self, TypeVar

from pydantic import Field, JsonValue, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from colony.body import Body, Entry, Frozen, explain
from colony.envelope import Emission, Envelope
from colony.errors import InvalidInput, ToolError, ToolTimeout
from colony.host import Host
from colony.results import (
    KEPT_BYTES,
    MAX_RESULT_BYTES,
    MOST_KEPT_BYTES,
    SHELVED_KEY,
    ends_of,
    head_of,
    with_handle,
    within,
)

# How much of a long text a tool keeps, where its result has only the beginning.
KeepBytes = Annotated[int, Field(ge=0, le=MOST_KEPT_BYTES)]


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


class Arguments(Frozen):
    """The argument object of a tool: closed, strict."""

    @classmethod
    def schema_of_tool(cls) -> dict[str, JsonValue]:
        """The JSON Schema to declare the tool with."""
        schema = cls.model_json_schema(schema_generator=_Untitled)
        return {key: part for key, part in schema.items() if key not in ("title", "description")}


A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class Answer:
    """What a tool has to say: a text for the model, counters for the edges."""

    text: str
    hop: Mapping[str, JsonValue] = field(default_factory=dict)
    # What is kept, where it is more than `text`.
    whole: str | None = None

    @classmethod
    def capped(
        cls,
        text: str,
        *,
        max_bytes: int,
        keep_bytes: int = KEPT_BYTES,
        size: int | None = None,
        **hop: JsonValue,
    ) -> Self:
        """An answer of at most the first `max_bytes` of `text`, which says so where it was cut.

        More than any result may have is not shown, whatever `max_bytes` is. Of what is not, the
        first `keep_bytes` are kept; where that is all of it, the end is shown as well.

        `hop.bytes` is the size of the whole; `size` gives it where `text` is only its beginning.
        """
        max_bytes = min(max_bytes, MAX_RESULT_BYTES)
        data = text.encode(errors="replace")
        given = len(data)
        whole = given if size is None else size
        counters: dict[str, JsonValue] = {"bytes": whole, **hop}
        if whole != given or given > max_bytes:
            counters["truncated"] = True
        ends = whole == given <= keep_bytes
        shown = ends_of(data, max_bytes) if ends else head_of(text, max_bytes, size=size)
        return cls(shown, counters, kept_of(text, shown_bytes=max_bytes, keep_bytes=keep_bytes))


def kept_of(text: str, *, shown_bytes: int, keep_bytes: int) -> str | None:
    """What is kept of a text of which the first `shown_bytes` are shown, where that is more."""
    kept = within(text, keep_bytes)
    return None if within(kept, shown_bytes) == kept else kept


async def answer(
    envelope: Envelope,
    do: Callable[[A], Awaitable[Answer]],
    *,
    host: Host,
    operation: str,
    arguments: type[A],
    timeout_ms: int | None,
) -> list[Emission]:
    """The result of the one tool call in `envelope`, under the id of the call.

    A ToolError, or a `do` that outlives `timeout_ms`, is a result as well: an error the model sees.
    What was cut off an answer is shelved with what was not, and the result names the handle.
    An answer's own `operation` takes the place of the general one.
    """
    started = time.monotonic()
    calls = [*envelope.body.each("tool_call")]
    hop: dict[str, JsonValue] = {"operation": operation}
    try:
        async with asyncio.timeout(timeout_ms and timeout_ms / 1000):
            found = await do(_read(calls, arguments))
    except TimeoutError:
        late = ToolTimeout(operation=operation, timeout_ms=timeout_ms)
        entries, counters = _failure(calls, late)
    except ToolError as error:
        entries, counters = _failure(calls, error)
    else:
        entries, counters = await _result(calls[0].id or "", found, host)
    hop.update(counters, duration_ms=round((time.monotonic() - started) * 1000))
    return [Emission(hop=hop, body=Body.of(*entries))]


def _read(calls: Sequence[Entry], arguments: type[A]) -> A:
    if len(calls) != 1:
        raise InvalidInput(detail=f"one tool call is handled at a time; this body has {len(calls)}")
    try:
        return arguments.model_validate_json(calls[0].text or "")
    except ValidationError as error:
        raise InvalidInput(detail=explain(error)) from None


async def _result(
    call_id: str, found: Answer, host: Host
) -> tuple[list[Entry], Mapping[str, JsonValue]]:
    if found.whole is None:
        return [Entry.result(call_id, found.text)], found.hop
    handle = await host.shelve(found.whole)
    size = len(found.whole.encode(errors="replace"))
    text = with_handle(found.text, handle, size=size)
    return [Entry.result(call_id, text)], {**found.hop, SHELVED_KEY: [handle]}


def _failure(
    calls: Sequence[Entry], error: ToolError
) -> tuple[list[Entry], Mapping[str, JsonValue]]:
    text = "\n".join(filter(None, (f"{error.code}: {error}", error.output)))
    results = [Entry.result(call.id or "", text, is_error=True) for call in calls]
    # Without a call there is no id to answer; the edges still learn what went wrong.
    entries = results or [Entry.say("tool", text)]
    return entries, {**error.hop, "finish_reason": "error", "error_code": error.code}
