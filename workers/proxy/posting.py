"""HTTP: messages that are posted here, and answers that are posted to an address."""

from collections.abc import Sequence
from typing import Final

import httpx

from colony.errors import PlatformError
from colony.host import Source
from colony.redaction import without_login
from workers.proxy.intake import Intake
from workers.proxy.messaging import Pause
from workers.proxy.params import Params

LIMITED: Final = 429
BUSY: Final = frozenset({LIMITED, httpx.codes.SERVICE_UNAVAILABLE})


class Http:
    """Whoever posts messages to `listen` and takes answers at `deliver_url`.

    Without a `deliver_url` an answer is kept as an output of its trace and goes nowhere else.
    """

    name: Final = "http"

    def __init__(self, params: Params, *, pause: Pause) -> None:
        token = params.deliver_token.get_secret_value()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(headers=headers, timeout=params.send_timeout_ms / 1000)
        self._url = params.deliver_url
        self.intake = Intake(*params.address, params.token.get_secret_value(), pause=pause)

    def addresses(self, chat_id: object) -> bool:
        """Whether `chat_id` is an integer or a text that is not empty."""
        return not isinstance(chat_id, bool) and (
            isinstance(chat_id, int) or (isinstance(chat_id, str) and bool(chat_id))
        )

    def parts(self, text: str) -> Sequence[str]:
        """One message, however long."""
        return [text]

    async def send(self, chat_id: int | str, text: str, *, key: str) -> None:
        """The receiver took the message; a repeat carries the same `Idempotency-Key`."""
        if not self._url:
            return
        try:
            reply = await self._client.post(
                self._url, json={"chat_id": chat_id, "text": text}, headers={"Idempotency-Key": key}
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            detail = str(error) or type(error).__name__
            # The key lets the receiver tell a repeat.
            raise PlatformError(detail=detail, repeatable=True) from None
        if not reply.is_success:
            raise PlatformError(
                detail=f"the receiver answered HTTP {reply.status_code}",
                status=reply.status_code,
                repeatable=reply.status_code in BUSY,
                retry_after_s=_seconds(reply.headers.get("Retry-After")),
            )

    async def run(self, source: Source) -> None:
        """Take messages until cancelled."""
        await self.intake.run(source)

    async def probe(self) -> str:
        """Where answers go; nobody is sent one to try it."""
        if not self._url:
            return "answers are kept, and go nowhere"
        return f"answers go to {without_login(self._url)}"

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _seconds(written: str | None) -> float | None:
    return float(written) if written and written.isascii() and written.isdigit() else None
