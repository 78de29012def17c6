"""The wire: what single servers want of a thread that is right as it stands."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from pydantic import JsonValue

Message = dict[str, JsonValue]

IdProfile = Literal["as_given", "mistral"]
ContentNull = Literal["null", "empty"]

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MISTRAL = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True)
class Wire:
    """How call ids are written, and what stands for the text of a message that has none."""

    ids: IdProfile = "as_given"
    content_null: ContentNull = "null"

    def written(self, messages: Sequence[Message]) -> list[Message]:
        """The same thread as the server takes it."""
        return [self._content(self._ids(message)) for message in messages]

    def _ids(self, message: Message) -> Message:
        if self.ids == "as_given":
            return message
        changed = dict(message)
        answers, calls = message.get("tool_call_id"), message.get("tool_calls")
        if isinstance(answers, str):
            changed["tool_call_id"] = nine_letters(answers)
        if isinstance(calls, list):
            changed["tool_calls"] = [_renamed(call) for call in calls]
        return changed

    def _content(self, message: Message) -> Message:
        if self.content_null == "null" or message.get("content", "") is not None:
            return message
        return {**message, "content": ""}


def nine_letters(call_id: str) -> str:
    """The id as Mistral's servers take it: nine letters or digits, always the same for the same id.

    One that a server gave in that form is not changed, so the result of a call finds it again.
    """
    if _MISTRAL.fullmatch(call_id):
        return call_id
    number = int.from_bytes(sha256(call_id.encode(errors="replace")).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def _renamed(call: JsonValue) -> JsonValue:
    if not isinstance(call, dict) or not isinstance(call.get("id"), str):
        return call
    return {**call, "id": nine_letters(str(call["id"]))}
