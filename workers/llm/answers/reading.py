"""Reading: what an answer says, also where it departs from the protocol, streamed or not.

A stream is put together first, so that one set of rules reads both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from workers.llm.answers.calls import own_fields, read_calls, written_calls
from workers.llm.answers.chunks import Assembly, error_in, text_of
from workers.llm.answers.failures import from_error_body
from workers.llm.answers.incoming import Incoming
from workers.llm.answers.json_text import is_begun, is_json, parse
from workers.llm.answers.labels import settle
from workers.llm.answers.text_calls import calls_in
from workers.llm.provider import (
    Answer,
    AnswerWarning,
    Call,
    Disposition,
    ErrorCode,
    Failure,
    FinishReason,
    Outcome,
    Progress,
    Reply,
)

# What of a message is the protocol's; everything else is the provider's own and goes back with it.
_OF_A_MESSAGE = frozenset(
    "role content refusal tool_calls function_call annotations audio name".split()
)

# What the first line of an event stream may begin with.
_OF_EVENTS = ("data:", "event:", "id:", "retry:", "error:", ":")


@dataclass(frozen=True, slots=True)
class Asked:
    """What of the request an answer is read by.

    `seed` makes the ids of calls that came without one. `text_calls` says that calls which stand in
    the text are meant as calls.
    """

    model: str
    seed: str
    offered: frozenset[str] = frozenset()
    max_tokens: int | None = None
    text_calls: bool = False


def read_text(text: str, asked: Asked) -> Reply:
    """The answer in the text of a response, be it one body or the events of a stream."""
    if text.lstrip("\ufeff \r\n").startswith(_OF_EVENTS):
        return read_events(text, asked)
    body = parse(text)
    if isinstance(body, dict):
        return read_message(body, asked)
    # A body that was cut is a connection that broke; anything else is not this protocol.
    cut = body is None and is_begun(text)
    return Failure(
        "provider_error",
        "the response is not a JSON object",
        kind="cut" if cut else "not_json",
        disposition="retryable" if cut else "unknown",
        progress="precommit",
    )


def read_message(body: dict[str, JsonValue], asked: Asked) -> Reply:
    """The answer that a whole body is."""
    choice = _first_choice(body)
    error = error_in(body) or (choice or {}).get("error")
    if error:
        return from_error_body(error, status=None)
    label = None if choice is None else choice.get("finish_reason")
    return _Reader(asked, warnings=set()).read(body, [label])


def read_chunks(chunks: Iterable[JsonValue], asked: Asked, *, done: bool) -> Reply:
    """The answer that the chunks of a stream are, `done` where the stream said that it is."""
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    return read_assembly(assembly, asked, done=done)


def read_events(text: str, asked: Asked) -> Reply:
    """The answer that the text of an event stream is."""
    incoming = Incoming()
    for _ in (*incoming.feed(text.encode(errors="replace")), *incoming.end()):
        pass
    return read_assembly(incoming.assembly, asked, done=incoming.done)


def read_assembly(assembly: Assembly, asked: Asked, *, done: bool) -> Reply:
    """The answer that was put together until its stream ended, `done` or not.

    A stream that ended without a word of why is one that was cut.
    """
    progress: Progress = "visible" if assembly.visible else "precommit"
    if assembly.error:
        return from_error_body(assembly.error, status=None, progress=progress)
    if not done and not assembly.finished:
        return Failure(
            "provider_error",
            "the stream ended before the answer did",
            kind="cut",
            disposition="retryable",
            progress=progress,
        )
    warnings = set(assembly.warnings)
    if not done:
        warnings.add("done_missing")
    reader = _Reader(asked, warnings=warnings, progress=progress, unended=not assembly.finished)
    return reader.read(assembly.body(), assembly.labels)


@dataclass(frozen=True, slots=True)
class _Reader:
    asked: Asked
    warnings: set[AnswerWarning]
    progress: Progress = "precommit"
    unended: bool = False

    def read(self, body: dict[str, JsonValue], labels: Sequence[JsonValue]) -> Reply:
        choice = _first_choice(body)
        if choice is None:
            return self._failure("no_choices", "the response has no choices", "retryable")
        message = choice.get("message")
        message = message if isinstance(message, dict) else choice.get("delta")
        if not isinstance(message, dict):
            return self._failure("provider_error", "the first choice has no message", "unknown")
        if "error" in labels:
            return self._failure("provider_error", "the provider broke the answer off", "unknown")
        return self._answer(body, message, labels)

    def _answer(
        self, body: dict[str, JsonValue], message: dict[str, JsonValue], labels: Sequence[JsonValue]
    ) -> Answer:
        text, refusal = _meaningful(text_of(message.get("content"))), _refusal(message)
        written = written_calls(message, self.warnings)
        recovered = self._recovered(text) if text is not None and not written else []
        calls = read_calls(written or recovered, seed=self.asked.seed, warnings=self.warnings)
        reason = settle(
            # Who did not see a call in the text did not lie about it.
            labels,
            has_calls=bool(written),
            cut=self._cut(calls, body),
            warnings=self.warnings,
        )
        if recovered:
            text, reason = None, "tool_calls" if reason == "stop" else reason
        if reason == "length":
            calls = tuple(call.model_copy(update={"problem": "truncated"}) for call in calls)
        said = text or refusal
        return Answer(
            model=_text(body.get("model")) or self.asked.model,
            outcome=_outcome(reason, said=said is not None, refused=refusal is not None),
            finish_reason=reason,
            text=said,
            calls=calls,
            response_id=_text(body.get("id")),
            tokens_prompt=_count(body, "prompt_tokens"),
            tokens_completion=_count(body, "completion_tokens"),
            tokens_cached=_cached(body),
            warnings=tuple(sorted(self.warnings)),
            vendor=own_fields(message, _OF_A_MESSAGE) or None,
        )

    def _recovered(self, text: str) -> list[JsonValue]:
        found = calls_in(text, self.asked.offered)
        if found:
            self.warnings.add("tool_call_in_text")
        return found if self.asked.text_calls else []

    def _cut(self, calls: Sequence[Call], body: dict[str, JsonValue]) -> bool:
        """Whether arguments that are no JSON are so because the answer ended too early."""
        if all(is_json(call.arguments) for call in calls):
            return False
        spent, limit = _count(body, "completion_tokens"), self.asked.max_tokens
        return self.unended or (spent is not None and limit is not None and spent >= limit)

    def _failure(self, code: ErrorCode, detail: str, disposition: Disposition) -> Failure:
        return Failure(code, detail, disposition=disposition, progress=self.progress)


def _outcome(reason: FinishReason, *, said: bool, refused: bool) -> Outcome:
    if reason == "length":
        return "truncated"
    if reason == "tool_calls":
        return "tool_calls"
    if reason == "content_filter" or refused:
        return "refused"
    return "message" if said else "empty"


def _first_choice(body: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    return choices[0] if isinstance(choices[0], dict) else {}


def _refusal(message: dict[str, JsonValue]) -> str | None:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    refusals = [part.get("refusal") for part in parts if isinstance(part, dict)]
    written = [*refusals, message.get("refusal")]
    return _meaningful("".join(one for one in written if isinstance(one, str)))


def _meaningful(text: str | None) -> str | None:
    return text if text and text.strip() else None


def _count(body: dict[str, JsonValue], name: str) -> int | None:
    return _whole_number(_object(body.get("usage")).get(name))


def _cached(body: dict[str, JsonValue]) -> int | None:
    usage = _object(body.get("usage"))
    return _whole_number(_object(usage.get("prompt_tokens_details")).get("cached_tokens"))


def _whole_number(found: JsonValue) -> int | None:
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 0 <= found < 2**53 else None


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None
