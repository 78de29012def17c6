"""Threads as a strict provider accepts them: every tool call answered exactly once, at once."""

from pydantic import JsonValue

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
            return f"messages[{number}] has a tool call without id, name or argument string"
        if len(set(ids)) < len(ids):
            return f"messages[{number}] has two tool calls of one id"
        waiting = ids
    return f"the thread ends before the results of {', '.join(waiting)}" if waiting else None


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
        and function["name"]
        and isinstance(function.get("arguments"), str)
    )
    call_id = call.get("id")
    return call_id if well_formed and isinstance(call_id, str) else None
