"""A Telegram server: as much of the Bot API over HTTP as a bot needs that polls and answers.

It is strict where the real one is, and where nobody is sure it takes the stricter reading: a text
is measured in UTF-16 code units.
"""

import asyncio
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from colony.testing.served import Served

TEXT_LIMIT: Final = 4096
BOT_NAME: Final = "test_bot"
BATCH: Final = 100
LOOK_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that the bot sent."""

    chat_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Poll:
    """What a poll asked for."""

    offset: int | None
    timeout_s: int


class TelegramServer(Served):
    """A server on a free port, for as long as its `with` block lasts.

    `say` makes a user write to the bot. `sent` is what the bot sent, `refused` the descriptions of
    what was refused, `polls` every poll, `unconfirmed` the updates that it would be given again.
    """

    def __init__(self, token: str = "1:test", *, first_update: int = 1000) -> None:
        self.token = token
        self.sent: list[Sent] = []
        self.refused: list[str] = []
        self.polls: list[Poll] = []
        self.unconfirmed: deque[dict[str, JsonValue]] = deque()
        self._ids = itertools.count(first_update)
        self._numbers = itertools.count(1)
        self._failures: dict[str, deque[Mapping[str, JsonValue]]] = {}
        self._poller = 0
        self._lock = threading.Lock()
        super().__init__(Route("/bot{token}/{method}", self._serve, methods=["GET", "POST"]))

    @property
    def base_url(self) -> str:
        """What a bot is told in place of `https://api.telegram.org`."""
        return self.origin

    def say(self, text: str, *, chat_id: int = 7, user_id: int = 70) -> int:
        """A user writes `text`; returns the id of the update."""
        message: dict[str, JsonValue] = {
            "message_id": next(self._numbers),
            "date": int(time.time()),
            "chat": {"id": chat_id, "type": "private"},
            "from": {"id": user_id, "is_bot": False, "first_name": "User"},
            "text": text,
        }
        return self.push({"message": message})

    def push(self, update: Mapping[str, JsonValue], *, update_id: int | None = None) -> int:
        """An update of any kind arrives; returns its id."""
        with self._lock:
            number = next(self._ids) if update_id is None else update_id
            self.unconfirmed.append({"update_id": number, **update})
        return number

    def fail_next(
        self, method: str, status: int, description: str = "", *, retry_after: int | None = None
    ) -> None:
        """The next call of `method` is refused in this way; said again, so is the one after it."""
        failure: dict[str, JsonValue] = {
            "ok": False,
            "error_code": status,
            "description": description or f"failure {status}",
        }
        if retry_after is not None:
            failure["parameters"] = {"retry_after": retry_after}
        self._failures.setdefault(method, deque()).append(failure)

    async def _serve(self, request: Request) -> Response:
        method = request.path_params["method"]
        if request.path_params["token"] != self.token:
            return self._refuse(401, "Unauthorized")
        given = self._failures.get(method)
        if given:
            failure: Any = given.popleft()
            self.refused.append(str(failure["description"]))
            return _escaped(failure, status=failure["error_code"])
        try:
            asked = await request.json() if await request.body() else {}
        except ValueError:
            return self._refuse(400, "Bad Request: can't parse JSON object")
        if method == "getUpdates":
            return await self._updates(asked, request)
        if method == "sendMessage":
            return self._send(asked)
        if method == "getMe":
            me = {"id": 1, "is_bot": True, "first_name": "Bot", "username": BOT_NAME}
            return JSONResponse({"ok": True, "result": me})
        return self._refuse(404, "Not Found: method not found")

    async def _updates(self, asked: Mapping[str, Any], request: Request) -> Response:
        offset, timeout_s = asked.get("offset"), int(asked.get("timeout", 0))
        self.polls.append(Poll(offset, timeout_s))
        self._poller += 1
        me, deadline = self._poller, time.monotonic() + timeout_s
        with self._lock:
            # Whatever lies before the offset is confirmed by it, and never given again.
            while offset and self.unconfirmed and _id(self.unconfirmed[0]) < offset:
                self.unconfirmed.popleft()
        while True:
            if self._poller != me:
                return self._refuse(409, "Conflict: terminated by other getUpdates request")
            if await request.is_disconnected():
                return Response()
            with self._lock:
                found = list(itertools.islice(self.unconfirmed, BATCH))
            if found or time.monotonic() >= deadline or self._server.should_exit:
                return _escaped({"ok": True, "result": found})
            await asyncio.sleep(LOOK_S)

    def _send(self, asked: Mapping[str, Any]) -> Response:
        chat_id, text = asked.get("chat_id"), asked.get("text")
        if not isinstance(chat_id, int) or isinstance(chat_id, bool):
            return self._refuse(400, "Bad Request: chat not found")
        if not isinstance(text, str) or not text.strip():
            return self._refuse(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > TEXT_LIMIT:
            return self._refuse(400, "Bad Request: message is too long")
        self.sent.append(Sent(chat_id, text))
        result = {"message_id": next(self._numbers), "chat": {"id": chat_id}, "text": text}
        return JSONResponse({"ok": True, "result": result})

    def _refuse(self, status: int, description: str) -> Response:
        self.refused.append(description)
        failure = {"ok": False, "error_code": status, "description": description}
        return JSONResponse(failure, status)


def _escaped(answer: Mapping[str, Any], *, status: int = 200) -> Response:
    """A response whose letters are escaped, as half a surrogate pair has to be."""
    return Response(json.dumps(answer), status, media_type="application/json")


def _id(update: Mapping[str, JsonValue]) -> int:
    number = update["update_id"]
    assert isinstance(number, int)
    return number
