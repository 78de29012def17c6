"""Telegram: a bot that is polled, and answers."""

from collections.abc import Sequence
from typing import Final

from colony.errors import PlatformError
from colony.host import Source
from workers.proxy.bot_api import BotApi
from workers.proxy.messaging import Pause
from workers.proxy.params import Params
from workers.proxy.polling import PLATFORM, Polling
from workers.proxy.splitting import split


class Telegram:
    """The bot of one token; without a token nothing is polled and nothing can be sent."""

    name: Final = PLATFORM

    def __init__(self, params: Params, *, pause: Pause) -> None:
        token = params.bot_token.get_secret_value()
        self._api = BotApi(params.base_url, token) if token else None
        self._send_timeout_s = params.send_timeout_ms / 1000
        self.polling: Polling | None = None
        if self._api is not None:
            self.polling = Polling(
                self._api,
                wait_s=params.long_poll_request_secs,
                timeout_s=params.long_poll_timeout_ms / 1000,
                lease_ms=params.lease_ms,
                chats=params.allowed_chats,
                pause=pause,
            )

    def addresses(self, chat_id: object) -> bool:
        """Whether `chat_id` is an integer."""
        return isinstance(chat_id, int) and not isinstance(chat_id, bool)

    def parts(self, text: str) -> Sequence[str]:
        """The messages that `text` is sent as."""
        return [*split(text)]

    async def send(self, chat_id: int | str, text: str, *, key: str) -> None:
        """The message is sent; Telegram knows no keys."""
        if self._api is None:
            raise PlatformError(detail="there is no bot_token")
        await self._api.send(int(chat_id), text, timeout_s=self._send_timeout_s)

    async def run(self, source: Source) -> None:
        """Poll until cancelled; without a token, say so once."""
        if self.polling is None:
            source.log.warning("proxy_idle", detail="there is no bot_token, so nothing is polled")
            return
        await self.polling.run(source)

    async def probe(self) -> str:
        """Which bot the token is of."""
        if self._api is None:
            raise PlatformError(detail="there is no bot_token")
        return f"Telegram knows the bot {await self._api.name(timeout_s=self._send_timeout_s)}"

    async def close(self) -> None:
        """Close the connections."""
        if self._api is not None:
            await self._api.close()
