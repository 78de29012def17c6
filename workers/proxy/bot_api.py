"""The Bot API of Telegram: what a bot asks of it over HTTP, and what it says."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from colony.envelope import digest
from colony.errors import PlatformError
from colony.redaction import REDACTED

LIMITED: Final = 429
# No number of an update is as high, nor can a mark be.
END_OF_UPDATES: Final = 2**53
# A longer wait than Telegram asks of anybody.
LONGEST_WAIT_S: Final = 24 * 60 * 60


class Chat(BaseModel):
    """Where a message was written."""

    id: int


class Message(BaseModel):
    """A message of a chat; `text` is absent on a picture, a sticker, a new member."""

    model_config = ConfigDict(populate_by_name=True)

    message_id: int
    chat: Chat
    writer: Chat | None = Field(default=None, alias="from")
    text: str | None = None


class Update(BaseModel):
    """Something that happened; only a new message is of interest."""

    update_id: int = Field(ge=0, lt=END_OF_UPDATES)
    message: Message | None = None


class BotApi:
    """The API at `base_url` for the bot of `token`, which is never told to anybody else."""

    def __init__(self, base_url: str, token: str) -> None:
        number, colon, _ = token.partition(":")
        # What its token begins with tells a bot from others, and is no secret.
        self.bot = number if colon and number.isdecimal() else digest(token)
        self._url = f"{base_url.rstrip('/')}/bot{token}/"
        self._token = token
        self._client = httpx.AsyncClient(timeout=None)
        # The address holds the token, and httpx logs each address.
        self._filter = _Without(token)
        logging.getLogger("httpx").addFilter(self._filter)

    async def updates(self, offset: int | None, *, wait_s: int, timeout_s: float) -> list[Update]:
        """The updates from `offset` on, oldest first; waits `wait_s` for one.

        Whatever came before `offset` is forgotten there. Raises PlatformError.
        """
        asked: dict[str, Any] = {"timeout": wait_s, "allowed_updates": ["message"]}
        if offset is not None:
            asked["offset"] = offset
        result = await self._ask("getUpdates", asked, timeout_s)
        if not isinstance(result, list):
            raise PlatformError(detail="getUpdates: the result is no list")
        read = (_read(update) for update in result if isinstance(update, dict))
        found = [update for update in read if update is not None]
        return sorted(found, key=lambda update: update.update_id)

    async def send(self, chat_id: int, text: str, *, timeout_s: float) -> None:
        """The message is sent; raises PlatformError where it is not, or may not be."""
        await self._ask("sendMessage", {"chat_id": chat_id, "text": text}, timeout_s)

    async def name(self, *, timeout_s: float) -> str:
        """What the bot is called; raises PlatformError where its token is none."""
        told = await self._ask("getMe", {}, timeout_s)
        return str(told.get("username")) if isinstance(told, dict) else ""

    async def close(self) -> None:
        """Close the connections."""
        logging.getLogger("httpx").removeFilter(self._filter)
        await self._client.aclose()

    async def _ask(self, method: str, asked: Mapping[str, Any], timeout_s: float) -> Any:
        try:
            reply = await self._client.post(self._url + method, json=asked, timeout=timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Without a connection nothing was asked; later nobody knows.
            unasked = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            detail = f"{method}: {error or type(error).__name__}".replace(self._token, REDACTED)
            raise PlatformError(detail=detail, repeatable=unasked) from None
        told = _parsed(reply)
        if reply.status_code == httpx.codes.OK and told.get("ok") is True:
            return told.get("result")
        raise _refusal(method, reply.status_code, told)


def _read(update: Mapping[str, Any]) -> Update | None:
    try:
        return Update.model_validate(update)
    except ValidationError:
        # One of a shape that is not known is passed over like a picture.
        number = update.get("update_id")
        sound = isinstance(number, int) and 0 <= number < END_OF_UPDATES
        return Update(update_id=number) if sound else None


def _parsed(reply: httpx.Response) -> Mapping[str, Any]:
    try:
        told = reply.json()
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _refusal(method: str, status: int, told: Mapping[str, Any]) -> PlatformError:
    parameters = told.get("parameters")
    after = parameters.get("retry_after") if isinstance(parameters, dict) else None
    # Half a surrogate pair has no form in UTF-8.
    why = str(told.get("description") or "no reason given").encode(errors="replace").decode()
    return PlatformError(
        detail=f"{method}: HTTP {status}: {why}",
        status=status,
        repeatable=status == LIMITED,
        retry_after_s=_seconds(after),
    )


def _seconds(after: object) -> float | None:
    if not isinstance(after, (int, float)) or not 0 <= after <= LONGEST_WAIT_S:
        return None
    return float(after)


class _Without(logging.Filter):
    """Drops the lines that would tell a token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def filter(self, record: logging.LogRecord) -> bool:
        return self._token not in record.getMessage()
