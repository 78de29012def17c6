"""Scripted answers: a model that gives what the cell's params say, for tests and demonstrations.

Which answer is given depends on the thread alone, so any number of workers give the same one: the
first to a question, the second once one round of calls has been made for it, and so on; the last
one is repeated. Where a text says `{results}`, what the tools of the question gave stands there.
"""

import json
import re
from collections.abc import Sequence

from pydantic import Field, JsonValue

from colony.body import Entry, Frozen
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

RESULTS = "{results}"

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
        step = min(rounds(request.entries), len(self._script) - 1)
        scripted = self._script[step]
        if scripted.error is not None:
            return Failure(scripted.error, scripted.text or "the script says so", kind="scripted")
        usage, text = scripted.usage, _filled(scripted.text, request.entries)
        reason = scripted.finish_reason or ("tool_calls" if scripted.tool_calls else "stop")
        for word in _WORD.findall(text or ""):
            await witness.text(word)
        return Answer(
            model=self._model,
            outcome=_OUTCOMES.get(reason) or ("tool_calls" if scripted.tool_calls else "message"),
            finish_reason=reason,
            text=text,
            calls=tuple(
                _call(call, request.seed, position, _PROBLEMS.get(reason))
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


def _call(call: ScriptedCall, seed: str, position: int, problem: CallProblem | None) -> Call:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    call_id = call.id or made_up_id(seed, position)
    return Call(id=call_id, name=call.name, arguments=text, problem=problem)
