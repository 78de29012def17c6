"""Labels: what a provider says an answer ended with, and what the answer itself says.

A label lies more often than an answer does, with one exception: an answer that was cut is believed,
because a cut call can be a whole one with a shorter argument.
"""

from collections.abc import Iterable

from pydantic import JsonValue

from workers.llm.provider import AnswerWarning, FinishReason

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


def settle(
    written: Iterable[JsonValue], *, has_calls: bool, cut: bool, warnings: set[AnswerWarning]
) -> FinishReason:
    """The reason an answer ended for, `written` being every label it was given, in order.

    `cut` says that the answer proves itself unfinished. Adds to `warnings` what is wrong with the
    labels.
    """
    labels = [label for label in written if label not in (None, "")]
    named = [_REASONS.get(label) if isinstance(label, str) else None for label in labels]
    if not labels:
        warnings.add("finish_reason_missing")
    if None in named:
        warnings.add("finish_reason_unknown")
    reasons: list[FinishReason] = [reason or "stop" for reason in named]
    final = _final(reasons, has_calls=has_calls, cut=cut)
    if any(reason != final for reason in reasons):
        warnings.add("finish_reason_mismatch")
    return final


def _final(reasons: list[FinishReason], *, has_calls: bool, cut: bool) -> FinishReason:
    if cut or "length" in reasons:
        return "length"
    if has_calls:
        return "tool_calls"
    last = reasons[-1] if reasons else "stop"
    return "stop" if last == "tool_calls" else last
