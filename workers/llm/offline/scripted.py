"""Scripted answers: a model that gives what the cell's params say, for tests and demonstrations.

Which answer is given depends on the message alone, so any number of workers give the same one: the
first to a question, the second once one round of calls has been made for it, and so on, whatever of
the rounds is still shown; the last one is repeated. Placeholders in its texts stand for what the
thread holds.
"""

import json
import re
from collections.abc import Mapping, Sequence

from pydantic import Field, JsonValue

from colony.body import Entry, Frozen
from colony.results import handles_in
from workers.llm.answers.calls import made_up_id
from workers.llm.offline.handed import handed
from workers.llm.provider import (
    Answer,
    Call,
    CallProblem,
    ErrorCode,
    Failure,
    FinishReason,
    Outcome,
    Reply,
    Request,
    Witness,
)
from workers.llm.threads.thread import rounds

_PLACEHOLDER = re.compile(r"\{(?:question|results|handle)\}")
_OUTCOMES: dict[FinishReason, Outcome] = {"length": "truncated", "content_filter": "refused"}
_PROBLEMS: dict[FinishReason, CallProblem] = {"length": "truncated"}
_WORD = re.compile(r"\S+\s*|\s+")


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

    async def complete(self, request: Request, witness: Witness) -> Reply:
        """The answer that the script has for this point of the thread, told word by word."""
        witness.sent(handed(request, self._model))
        scripted = self._script[min(_step(request), len(self._script) - 1)]
        if scripted.error is not None:
            return Failure(scripted.error, scripted.text or "the script says so", kind="scripted")
        known = _known(request.entries)
        usage, text = scripted.usage, _filled(scripted.text, known)
        reason = scripted.finish_reason or ("tool_calls" if scripted.tool_calls else "stop")
        for word in _WORD.findall(text or ""):
            await witness.text(word)
        return Answer(
            model=self._model,
            outcome=_OUTCOMES.get(reason) or ("tool_calls" if scripted.tool_calls else "message"),
            finish_reason=reason,
            text=text,
            calls=tuple(
                _call(call, known, made_up_id(request.seed, position), _PROBLEMS.get(reason))
                for position, call in enumerate(scripted.tool_calls)
            ),
            tokens_prompt=usage.prompt_tokens if usage else None,
            tokens_completion=usage.completion_tokens if usage else None,
        )

    async def close(self) -> None:
        """Nothing is held."""


def _step(request: Request) -> int:
    """How many rounds were made for the question: rounds that left the view count as well."""
    shown = rounds(request.entries)
    # A thread of one message is not that of the loop, though the count rides along: a fold's.
    return max(shown, request.iteration) if shown or len(request.entries) > 1 else 0


def _known(entries: Sequence[Entry]) -> dict[str, str]:
    """What each placeholder stands for; one that has nothing to stand for is not there."""
    asked, results, handles = "", list[str](), list[str]()
    for entry in entries:
        text = entry.text or ""
        if entry.origin == "user" and entry.type == "text":
            asked, results = text, []
        elif entry.type == "tool_result":
            results.append(text)
        if entry.type != "tool_call":
            handles += handles_in(text)
    newest = {"{handle}": handles[-1]} if handles else {}
    return {"{question}": asked, "{results}": "\n".join(results), **newest}


def _filled(text: str | None, known: Mapping[str, str]) -> str | None:
    if text is None:
        return None
    return _PLACEHOLDER.sub(lambda found: known.get(found[0], found[0]), text)


def _filled_within(value: JsonValue, known: Mapping[str, str]) -> JsonValue:
    match value:
        case str():
            return _filled(value, known)
        case list():
            return [_filled_within(one, known) for one in value]
        case dict():
            return {name: _filled_within(one, known) for name, one in value.items()}
    return value


def _call(
    call: ScriptedCall, known: Mapping[str, str], made_up: str, problem: CallProblem | None
) -> Call:
    arguments = call.arguments
    text = (
        arguments
        if isinstance(arguments, str)
        else json.dumps(_filled_within(arguments, known), ensure_ascii=False)
    )
    return Call(id=call.id or made_up, name=call.name, arguments=text, problem=problem)
