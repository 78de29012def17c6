"""Handed: what a model of this process is handed, as it would be sent to a server."""

import json

from workers.llm.provider import Failure, Request
from workers.llm.servers.chat_body import to_body
from workers.llm.threads.thread import to_messages


def handed(request: Request, model: str) -> bytes:
    """The body of the chat request, always the same for the same request.

    A thread that no server would take is told by its entries.
    """
    messages = to_messages(request.entries, request.system)
    if isinstance(messages, Failure):
        messages = [entry.to_json() for entry in request.entries]
    body = {**to_body(messages, request, {}), "model": model}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
