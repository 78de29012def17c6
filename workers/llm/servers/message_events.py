"""Message events: what the Messages API answers, told again as the chunks of a chat completion.

So an answer of this protocol is read by the same rules as any other, streamed or not: a message
that came whole is taken as the events that would have made it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue
from pydantic_core import from_json

from workers.llm.answers.chunks import Heard
from workers.llm.servers.message_blocks import BLOCKS

Fields = dict[str, JsonValue]

# Reasons for an end that no chat completion has.
_REASONS: Mapping[str, str] = {
    "refusal": "content_filter",
    "model_context_window_exceeded": "length",
    "pause_turn": "stop",
}

# The pieces in which the texts of a block come, by the kind of the delta.
_PIECES: Mapping[str, str] = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


@dataclass(slots=True)
class Translation:
    """An answer on its way from the one form to the other. `done` once the server said so."""

    done: bool = False
    _usage: Fields = field(default_factory=dict)
    _block: Fields = field(default_factory=dict)
    # What is called by the provider itself comes with its arguments in pieces as well.
    _input: str = ""
    _kept: list[JsonValue] = field(default_factory=list)
    _spoken: bool = False
    _calls: int = 0

    def chunks(self, event: Fields) -> Iterator[Fields]:
        """The chunks that an event is."""
        match event.get("type"):
            case "message_start":
                message = _object(event.get("message"))
                yield {**_named(message, "id", "model"), **self._counted(message)}
            case "content_block_start":
                self._block = _object(event.get("content_block"))
                yield from self._begun()
            case "content_block_delta":
                yield from self._grown(_object(event.get("delta")))
            case "content_block_stop":
                self._ended()
            case "message_delta":
                yield from self._closing(_object(event.get("delta")), event)
            case "message_stop":
                self.done = True
            case "error":
                yield {"error": event.get("error") or event}

    def whole(self, message: Fields) -> Iterator[Fields]:
        """The chunks that a message is which came in one piece."""
        for event in _events(message):
            yield from self.chunks(event)

    def heard(self, event: Fields) -> Heard:
        """What an event adds to the text, and to what the model thinks."""
        delta = _object(event.get("delta"))
        thought, text = delta.get("thinking"), delta.get("text")
        return Heard(
            text=text if isinstance(text, str) else "",
            reasoning=thought if isinstance(thought, str) else "",
        )

    def _begun(self) -> Iterator[Fields]:
        block = self._block
        match block.get("type"):
            case "tool_use":
                given = block.get("input")
                call: Fields = {
                    "index": self._calls,
                    "id": block.get("id"),
                    "type": "function",
                    "function": {
                        "name": block.get("name"),
                        "arguments": json.dumps(given, ensure_ascii=False) if given else "",
                    },
                }
                if self._spoken and self._kept:
                    call[BLOCKS], self._kept = self._kept, []
                self._calls += 1
                yield from self._said({"tool_calls": [call]})
            case "text":
                yield from self._said({"content": block.get("text")})

    def _said(self, delta: Fields) -> Iterator[Fields]:
        if not self._spoken:
            self._spoken = True
            yield from self._kept_so_far()
        yield _chunk(delta)

    def _grown(self, delta: Fields) -> Iterator[Fields]:
        kind = delta.get("type")
        if kind == "input_json_delta" and self._block.get("type") != "tool_use":
            self._input += str(delta.get("partial_json") or "")
        elif kind == "input_json_delta":
            written: Fields = {"arguments": delta.get("partial_json")}
            yield _chunk({"tool_calls": [{"index": self._calls - 1, "function": written}]})
        elif kind == "text_delta" and self._block.get("type") == "text":
            yield from self._said({"content": delta.get("text")})
        elif isinstance(kind, str) and kind in _PIECES:
            name = _PIECES[kind]
            self._block[name] = f"{self._block.get(name) or ''}{delta.get(name) or ''}"

    def _ended(self) -> None:
        block, written = self._block, _parsed(self._input)
        self._block, self._input = {}, ""
        if written is not None:
            block["input"] = written
        if block and block.get("type") not in ("text", "tool_use"):
            self._kept.append(block)

    def _closing(self, delta: Fields, event: Fields) -> Iterator[Fields]:
        yield from self._kept_so_far()
        reason = delta.get("stop_reason")
        reason = _REASONS.get(reason, reason) if isinstance(reason, str) else reason
        yield {**_chunk({}, reason), **self._counted(event)}

    def _kept_so_far(self) -> Iterator[Fields]:
        """The blocks that belong to the turn: those before it says anything, or that end it."""
        if self._kept:
            kept, self._kept = self._kept, []
            yield _chunk({BLOCKS: kept})

    def _counted(self, told: Fields) -> Fields:
        self._usage.update({k: v for k, v in _object(told.get("usage")).items() if v is not None})
        return {"usage": _usage(self._usage)} if self._usage else {}


def _usage(told: Fields) -> Fields:
    """What was used, in the words of a chat completion, whose prompt includes what was cached."""
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    prompt = [told[name] for name in parts if isinstance(told.get(name), int)]
    return {
        "prompt_tokens": sum(n for n in prompt if isinstance(n, int)) if prompt else None,
        "completion_tokens": told.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": told.get("cache_read_input_tokens")},
    }


def _events(message: Fields) -> Iterator[Fields]:
    if message.get("type") == "error":
        yield message
        return
    yield {"type": "message_start", "message": message}
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        yield {"type": "content_block_start", "content_block": block}
        yield {"type": "content_block_stop"}
    yield {"type": "message_delta", "delta": _named(message, "stop_reason")}
    yield {"type": "message_stop"}


def _chunk(delta: Fields, reason: JsonValue = None) -> Fields:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _named(fields: Fields, *names: str) -> Fields:
    return {name: fields[name] for name in names if name in fields}


def _parsed(text: str) -> JsonValue:
    try:
        found: JsonValue = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    return found


def _object(value: JsonValue) -> Fields:
    return dict(value) if isinstance(value, dict) else {}
