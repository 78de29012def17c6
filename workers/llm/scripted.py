"""Scripted answers: a model that gives what the cell's params say, for tests and demonstrations.

Which answer is given depends on the thread alone, so any number of workers give the same one: the
first to a question, the second once one round of calls has been made for it, and so on; the last
one is repeated. Where a text says `{results}`, what the tools of the question gave stands there.
"""

import json
from collections.abc import Sequence

from pydantic import Field, JsonValue

from colony.body import Entry, Frozen
from workers.llm.provider import (
    Answer,
    Call,
    ErrorCode,
    Failure,
    FinishReason,
    Reply,
    Request,
)
from workers.llm.reading import made_up_id
from workers.llm.thread import rounds

RESULTS = "{results}"


class ScriptedCall(Frozen):
    """A tool call of a script; arguments that are a text are sent as they stand."""

    name: str
    arguments: dict[str, JsonValue] | str = Field(default_factory=dict)
    id: str | None = None


class Usage(Frozen):
    """What an answer is said to have cost."""

    prompt_tokens: int
    completion_tokens: int


class ScriptedAnswer(Frozen):
    """One answer of a script: a text, calls, both, or an error."""

    text: str | None = None
    tool_calls: list[ScriptedCall] = Field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: ErrorCode | None = None


class Scripted:
    """A model that plays a script."""

    def __init__(self, script: Sequence[ScriptedAnswer], *, model: str) -> None:
        self._script = script
        self._model = model

    async def complete(self, request: Request) -> Reply:
        """The answer that the script has for this point of the thread."""
        step = min(rounds(request.entries), len(self._script) - 1)
        scripted = self._script[step]
        if scripted.error is not None:
            return Failure(scripted.error, scripted.text or "the script says so", kind="scripted")
        usage = scripted.usage
        return Answer(
            model=self._model,
            finish_reason=scripted.finish_reason
            or ("tool_calls" if scripted.tool_calls else "stop"),
            text=_filled(scripted.text, request.entries),
            calls=tuple(
                _call(call, request.seed, position)
                for position, call in enumerate(scripted.tool_calls)
            ),
            tokens_prompt=usage.prompt_tokens if usage else None,
            tokens_completion=usage.completion_tokens if usage else None,
        )

    async def close(self) -> None:
        """Nothing is held."""


def _filled(text: str | None, entries: Sequence[Entry]) -> str | None:
    if text is None or RESULTS not in text:
        return text
    found: list[str] = []
    for entry in entries:
        if entry.origin == "user" and entry.type == "text":
            found.clear()
        elif entry.type == "tool_result" and entry.text is not None:
            found.append(entry.text)
    return text.replace(RESULTS, "\n".join(found))


def _call(call: ScriptedCall, seed: str, position: int) -> Call:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(id=call.id or made_up_id(seed, position), name=call.name, arguments=text)
