"""Polling: the updates of a bot, each a birth or nothing, by the one process that leads."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import Emission
from colony.errors import BodyError, EnvelopeError, PlatformError
from colony.host import Source
from colony.log import Logger
from workers.proxy.bot_api import LIMITED, BotApi, Message, Update
from workers.proxy.cursor import Cursor
from workers.proxy.messaging import FIRST_RETRY_S, MAX_RETRY_S, Pause

PLATFORM: Final = "telegram"

# What a person has to put right first: a wrong token; another who polls for the same bot.
REFUSED: Final = frozenset({401, 403, 404})
CONFLICT: Final = 409
REFUSED_RETRY_S: Final = 60.0
CONFLICT_RETRY_S: Final = 5.0


class Polling:
    """The long poll of one bot."""

    def __init__(
        self,
        api: BotApi,
        *,
        wait_s: int,
        timeout_s: float,
        lease_ms: int,
        chats: Collection[int],
        pause: Pause,
    ) -> None:
        self._api = api
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._lease_ms = lease_ms
        self._chats = frozenset(chats)
        self._pause = pause
        self._trouble = Trouble()

    async def run(self, source: Source) -> None:
        """Poll until cancelled, whenever this process leads."""
        while True:
            if await source.lead(self._lease_ms):
                await self.round(source)
            else:
                await self._pause(self._lease_ms / 3000)

    async def round(self, source: Source) -> None:
        """Poll once, and make births of what comes; after a failure, wait."""
        cursor = await Cursor.read(source, self._api.bot)
        began = time.monotonic()
        try:
            updates = await self._api.updates(
                cursor.offset, wait_s=self._wait_s, timeout_s=self._timeout_s
            )
        except PlatformError as error:
            await self._pause(self._trouble.met(error, source.log))
            return
        self._trouble.over(source.log)
        if not updates:
            # Whoever answers nothing at once, because it does not hold polls, is not asked at once.
            left_s = FIRST_RETRY_S - (time.monotonic() - began)
            if left_s > 0:
                await self._pause(left_s)
            return
        name = await cursor.note(source, updates)
        for update in updates:
            await self._take(update, name, source)

    async def _take(self, update: Update, name: str, source: Source) -> None:
        message = update.message
        if message is not None and message.text and self._listens_to(message):
            try:
                await source.birth(
                    _asked(message, message.text),
                    mark=update.update_id,
                    name=name,
                    session=str(message.chat.id),
                )
                return
            except (BodyError, EnvelopeError) as error:
                source.log.error("update_unusable", update=update.update_id, detail=str(error))
        # It would come again for ever.
        await source.raise_mark(update.update_id, name=name)

    def _listens_to(self, message: Message) -> bool:
        return not self._chats or message.chat.id in self._chats


def _asked(message: Message, text: str) -> Emission:
    # Half a surrogate pair has no form in UTF-8.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    hop: dict[str, JsonValue] = {
        "platform": PLATFORM,
        "chat_id": message.chat.id,
        "message_id": message.message_id,
    }
    if message.writer is not None:
        hop["user_id"] = message.writer.id
    return Emission(hop=hop, body=Body.of(Entry.say("user", whole)))


@dataclass
class Trouble:
    """Why polling fails, told once for each reason, and how long to wait before the next try."""

    kind: str = ""
    wait_s: float = 0.0

    def met(self, error: PlatformError, log: Logger) -> float:
        """Tell of a failure that is new; returns how long to wait."""
        kind, first_s, longest_s = _sort(error)
        if kind != self.kind:
            self.kind, self.wait_s = kind, first_s
            tell = log.error if kind == "refused" else log.warning
            tell("poll_failed", reason=kind, detail=str(error))
        else:
            self.wait_s = min(self.wait_s * 2, longest_s)
        return max(self.wait_s, error.retry_after_s or 0.0)

    def over(self, log: Logger) -> None:
        """Tell that it answers again."""
        if self.kind:
            log.info("poll_answered", after=self.kind)
            self.kind = ""


def _sort(error: PlatformError) -> tuple[str, float, float]:
    """The kind of a failure, and how long its first and its longest wait is."""
    if error.status in REFUSED:
        return "refused", REFUSED_RETRY_S, 10 * REFUSED_RETRY_S
    if error.status == CONFLICT:
        return "conflict", CONFLICT_RETRY_S, MAX_RETRY_S
    kind = "limited" if error.status == LIMITED else "unavailable"
    return kind, FIRST_RETRY_S, MAX_RETRY_S
