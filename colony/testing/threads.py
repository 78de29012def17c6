"""Threads as a strict provider accepts them: every tool call answered exactly once, at once."""

import re

from pydantic import JsonValue

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

ROLES = ("system", "developer", "user", "assistant", "tool")


def problem(messages: JsonValue) -> str | None:
    """What a strict provider finds wrong with `messages` of a chat completion; None if nothing."""
    if not isinstance(messages, list) or not messages:
        return "messages is not a list with something in it"
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return f"messages[{number}] is no message of a known role"
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in waiting:
                return f"messages[{number}] answers {call_id!r}, which no call before it waits for"
            waiting = [other for other in waiting if other != call_id]
            continue
        if waiting:
            return f"messages[{number}] comes before the results of {', '.join(waiting)}"
        ids = _call_ids(message)
        if ids is None:
            return f"messages[{number}] has a tool call without id, plain name or argument string"
        if len(set(ids)) < len(ids):
            return f"messages[{number}] has two tool calls of one id"
        waiting = ids
    return f"the thread ends before the results of {', '.join(waiting)}" if waiting else None


def block_problem(messages: JsonValue) -> str | None:
    """What a strict provider finds wrong with `messages` of the Messages API; None if nothing."""
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    waiting: list[str] = []
    seen: set[str] = set()
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role != ("user", "assistant")[number % 2]:
            return f"messages.{number}: roles must alternate between user and assistant"
        assert isinstance(message, dict)
        blocks = _blocks(message.get("content"))
        if blocks is None:
            return f"messages.{number}: content must be blocks, and text blocks must say something"
        answers = [b.get("tool_use_id") for b in blocks if b["type"] == "tool_result"]
        leading = [b.get("tool_use_id") for b in blocks[: len(answers)]]
        if answers != leading:
            return f"messages.{number}: tool_result blocks must come first"
        if sorted(map(str, answers)) != sorted(waiting):
            return f"messages.{number}: tool_use ids {waiting} must each be answered here, once"
        calls = [b for b in blocks if b["type"] == "tool_use"]
        if calls and role == "user":
            return f"messages.{number}: a user makes no tool_use"
        waiting = [str(call.get("id")) for call in calls]
        if len(set(waiting) - seen) < len(waiting) or not all(map(_is_call, calls)):
            return f"messages.{number}: tool_use needs an id of its own, a name and an input"
        seen |= set(waiting)
    return f"the thread ends before the results of {waiting}" if waiting else None


def _blocks(content: JsonValue) -> list[dict[str, JsonValue]] | None:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        return None
    blocks = [block for block in content if isinstance(block, dict) and "type" in block]
    said = [block.get("text") for block in blocks if block["type"] == "text"]
    spoken = all(isinstance(text, str) and text.strip() for text in said)
    return blocks if len(blocks) == len(content) and spoken else None


def _is_call(block: dict[str, JsonValue]) -> bool:
    call_id, name = block.get("id"), block.get("name")
    return (
        isinstance(call_id, str)
        and _ID.fullmatch(call_id) is not None
        and isinstance(name, str)
        and _ID.fullmatch(name) is not None
        and isinstance(block.get("input"), dict)
    )


def _call_ids(message: dict[str, JsonValue]) -> list[str] | None:
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        return None
    ids = [_call_id(call) for call in calls]
    return [call_id for call_id in ids if call_id] if all(ids) else None


def _call_id(call: JsonValue) -> str | None:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return None
    function = call["function"]
    assert isinstance(function, dict)
    well_formed = (
        isinstance(function.get("name"), str)
        and _NAME.fullmatch(str(function["name"]))
        and isinstance(function.get("arguments"), str)
    )
    call_id = call.get("id")
    return call_id if well_formed and isinstance(call_id, str) else None
