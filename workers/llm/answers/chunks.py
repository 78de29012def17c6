"""Chunks: a streamed answer put together into the body that would have come without streaming."""

from dataclasses import dataclass, field

from pydantic import JsonValue

from workers.llm.answers.call_slots import CallSlots
from workers.llm.answers.events import Event
from workers.llm.provider import AnswerWarning

Fields = dict[str, JsonValue]

# What of a delta the assembly reads itself; of the rest it keeps what is there at the end.
_READ = frozenset({"role", "content", "refusal", "tool_calls", "function_call"})
# What a model thinks comes in pieces, under the names that servers have for it.
THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True)
class Heard:
    """What one chunk adds to the text, and to what the model thinks."""

    text: str = ""
    reasoning: str = ""


@dataclass(slots=True)
class Assembly:
    """The answer as far as its chunks have come.

    `error` is what the provider said went wrong instead of going on.
    """

    error: JsonValue = None
    labels: list[JsonValue] = field(default_factory=list)
    warnings: set[AnswerWarning] = field(default_factory=set)
    _head: Fields = field(default_factory=dict)
    _text: list[str] = field(default_factory=list)
    _refusal: list[str] = field(default_factory=list)
    _own: Fields = field(default_factory=dict)
    _calls: CallSlots = field(init=False)
    _legacy: list[JsonValue] = field(default_factory=list)
    _answered: bool = False

    def __post_init__(self) -> None:
        self._calls = CallSlots(self.warnings)

    @property
    def finished(self) -> bool:
        """Whether the provider said why the answer ends."""
        return bool(self.labels)

    @property
    def visible(self) -> bool:
        """Whether the answer has something of its own: a text, or a call."""
        return bool(self._calls or "".join(self._text).strip() or "".join(self._refusal).strip())

    def add(self, chunk: JsonValue) -> Heard:
        """Take in the next chunk; what is no part of an answer is left out."""
        if not isinstance(chunk, dict):
            return Heard()
        self.error = self.error or error_in(chunk)
        for name in ("id", "model", "usage"):
            if chunk.get(name):
                self._head[name] = chunk[name]
        choice = _first_choice(chunk)
        if choice is None:
            return Heard()
        self._answered = True
        if choice.get("usage"):
            self._head["usage"] = choice["usage"]
        self.error = self.error or choice.get("error")
        if choice.get("finish_reason") not in (None, ""):
            self.labels.append(choice["finish_reason"])
        delta = choice.get("delta")
        if not isinstance(delta, dict) and not self.visible:
            # Some servers end with, or give nothing but, the whole message.
            delta = choice.get("message")
        return self._take(delta) if isinstance(delta, dict) else Heard()

    def add_event(self, event: Event) -> Heard:
        """Take in the chunk that an event is. One that cannot be read is an error."""
        chunk = event.value
        if event.error or not isinstance(chunk, dict):
            said = error_in(chunk) if isinstance(chunk, dict) else None
            self.error = self.error or said or chunk or event.data or "an error without a word"
            return Heard()
        return self.add(chunk)

    def body(self) -> Fields:
        """The body of a response that says the same; its label is among `labels`."""
        if not self._answered:
            return {**self._head, "choices": []}
        message: Fields = {**self._own, "content": "".join(self._text) or None}
        if self._refusal:
            message["refusal"] = "".join(self._refusal)
        calls = self._calls.calls()
        if calls:
            message["tool_calls"] = calls
        return {**self._head, "choices": [{"message": message}]}

    def _take(self, delta: Fields) -> Heard:
        text, refusal = text_of(delta.get("content")), delta.get("refusal")
        if text:
            self._text.append(text)
        if isinstance(refusal, str):
            self._refusal.append(refusal)
        fragments = delta.get("tool_calls")
        for fragment in fragments if isinstance(fragments, list) else [fragments]:
            if isinstance(fragment, dict):
                self._calls.add(fragment)
        legacy = delta.get("function_call")
        if isinstance(legacy, dict):
            self.warnings.add("legacy_function_call")
            self._calls.add({"index": 0, "function": legacy})
        return Heard(text or "", self._keep(delta))

    def _keep(self, delta: Fields) -> str:
        """Keep the provider's own fields; returns what the model thought."""
        thought = ""
        for name, value in delta.items():
            if name in _READ or value in (None, ""):
                continue
            if isinstance(value, str) and name in THOUGHTS:
                thought = thought or value
                value = _joined(self._own.get(name), value)
            elif isinstance(value, list):
                value = _merged(self._own.get(name), value)
            self._own[name] = value
        return thought


def error_in(body: Fields) -> JsonValue:
    """What a body says went wrong, under the names that servers have for it; None if nothing."""
    if body.get("error"):
        return body["error"]
    if body.get("object") == "error" or body.get("type") == "error":
        return body
    return body.get("detail") if "choices" not in body else None


def text_of(content: JsonValue) -> str | None:
    """The text of a `content`, be it a text or parts; None where there is none."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str)) or None
    return content if isinstance(content, str) else None


def _first_choice(chunk: Fields) -> Fields | None:
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) in (0, None):
            return choice
    return None


def _joined(before: JsonValue, piece: str) -> str:
    return before + piece if isinstance(before, str) else piece


def _merged(before: JsonValue, pieces: list[JsonValue]) -> list[JsonValue]:
    """Pieces of numbered items, such as details of reasoning, joined item by item."""
    items = list(before) if isinstance(before, list) else []
    for piece in pieces:
        last = items[-1] if items else None
        if isinstance(piece, dict) and isinstance(last, dict) and _continues(last, piece):
            items[-1] = _together(last, piece)
        else:
            items.append(piece)
    return items


def _continues(item: Fields, piece: Fields) -> bool:
    return all(item.get(name) == piece.get(name) for name in ("index", "type")) and (
        piece.get("index") is not None
    )


def _together(item: Fields, piece: Fields) -> Fields:
    joined = dict(item)
    for name, value in piece.items():
        if name in ("text", "summary") and isinstance(value, str):
            joined[name] = _joined(item.get(name), value)
        elif value is not None:
            joined[name] = value
    return joined
