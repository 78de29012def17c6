"""Reading: what the body of a chat completion says, also where it departs from the protocol."""

import json

from pydantic import JsonValue
from pydantic_core import from_json

from colony.envelope import digest
from workers.llm.failures import from_error_body
from workers.llm.provider import Answer, Call, Failure, FinishReason, Reply

# Names that compatible servers give to the four reasons of the protocol.
_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def read(text: str, *, model: str, seed: str) -> Reply:
    """The answer in the text of a response; `seed` names calls that came without an id."""
    body = parse(text)
    if not isinstance(body, dict):
        return Failure("provider_error", "the response is not a JSON object")
    if body.get("error"):
        return from_error_body(body["error"], status=None)
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        return Failure("no_choices", "the response has no choices")
    choice = choices[0] if isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        return Failure("provider_error", "the first choice has no message")
    calls = _calls(message, seed)
    reason = _reason(choice.get("finish_reason"), message, calls)
    if reason is None:
        detail = f"unknown finish_reason {choice.get('finish_reason')!r}"
        return Failure("provider_error", detail)
    said = _content(message)
    if reason == "stop" and not (said and said.strip()):
        return Failure("empty_answer", "the answer has neither a text nor a call")
    return Answer(
        model=_text(body.get("model")) or model,
        finish_reason=reason,
        text=said,
        calls=calls,
        response_id=_text(body.get("id")),
        tokens_prompt=_count(body, "prompt_tokens"),
        tokens_completion=_count(body, "completion_tokens"),
    )


def parse(text: str) -> JsonValue:
    """The JSON value that `text` is, fit to be sent on; None where it is none.

    Half a surrogate pair and values nested hundreds deep are refused.
    """
    try:
        found: JsonValue = from_json(text.removeprefix("\ufeff"), allow_inf_nan=False)
    except ValueError:
        return None
    return found


def _reason(
    written: JsonValue, message: dict[str, JsonValue], calls: tuple[Call, ...]
) -> FinishReason | None:
    # A label lies more often than a message does; a cut or filtered answer is believed, because
    # its calls may be cut as well.
    reason = _REASONS.get(written) if isinstance(written, str) else None
    if reason in ("length", "content_filter"):
        return reason
    if calls:
        return "tool_calls"
    if reason == "tool_calls" or not written:
        return "stop"
    return reason


def _content(message: dict[str, JsonValue]) -> str | None:
    content = message.get("content")
    if isinstance(content, list):
        parts = [_content_of(part) for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if part) or None
    found = _text(content)
    return _text(message.get("refusal")) if found is None else found


def _content_of(part: dict[str, JsonValue]) -> str | None:
    found = _text(part.get("text"))
    return _text(part.get("refusal")) if found is None else found


def _calls(message: dict[str, JsonValue], seed: str) -> tuple[Call, ...]:
    written = message.get("tool_calls")
    if not isinstance(written, list):
        legacy = message.get("function_call")
        written = [{"function": legacy}] if isinstance(legacy, dict) else []
    return tuple(_call(call, seed, position) for position, call in enumerate(written))


def _call(call: JsonValue, seed: str, position: int) -> Call:
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return Call(
        id=_text(call.get("id")) or made_up_id(seed, position),
        name=_text(function.get("name")) or "",
        arguments=arguments,
    )


def made_up_id(seed: str, position: int) -> str:
    """The id of a call that has none: the same whenever the same call is made again."""
    return f"call_{digest([seed, position])}"


def _count(body: dict[str, JsonValue], name: str) -> int | None:
    usage = body.get("usage")
    found = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 0 <= found < 2**53 else None


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None
