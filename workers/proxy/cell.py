"""The cell type `proxy`: births from what people write, deliveries of what they are answered.

Every part that was delivered is recorded, so an envelope that is handled again goes on where the
other handle was. What was sent and not yet recorded when a process died is sent again.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import JsonValue

from colony.body import Body
from colony.cell import Cell
from colony.envelope import Emission, Envelope, derived_id
from colony.errors import PlatformError
from colony.host import Host, Source
from workers.proxy.messaging import Pause, Platform, patiently, sleep
from workers.proxy.params import Params as ProxyParams
from workers.proxy.posting import Http
from workers.proxy.telegram import Telegram


class Proxy(Cell):
    """Stand for the people of a platform: what they write leaves by the edges, and the last
    assistant text that arrives goes to the chat that `context.chat_id` names."""

    Params = ProxyParams
    default_message_timeout_ms: ClassVar[int] = 300_000

    params: ProxyParams
    platform: Platform

    def __init__(self, params: ProxyParams, *, pause: Pause = sleep) -> None:
        super().__init__(params)
        self._pause = pause

    async def start(self, host: Host) -> None:
        """The platform can be asked; nothing is sent yet."""
        kind = Telegram if self.params.platform == "telegram" else Http
        self.platform = kind(self.params, pause=self._pause)

    async def run(self, source: Source) -> None:
        """Make a birth of everything that people write."""
        await self.platform.run(source)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Deliver the answer and keep it as an output; what keeps it from that is an emission."""
        chat_id = envelope.context.get("chat_id")
        if envelope.body.messages is None:
            return [_error("invalid_body", "the body has no messages")]
        if not isinstance(chat_id, (int, str)) or not self.platform.addresses(chat_id):
            return [_error("missing_chat_id", f"context.chat_id is {chat_id!r}")]
        said = envelope.body.last("assistant")
        if said is None or not (said.text or "").strip():
            return [_error("missing_assistant_turn", "there is no text of the assistant")]
        parts = self.platform.parts(said.text or "")
        for number, part in enumerate(parts):
            try:
                await self._deliver(chat_id, part, f"sent.{number}", envelope, host)
            except PlatformError as error:
                host.log.warning("send_failed", detail=str(error), part=number, parts=len(parts))
                return [_error(error.code, str(error), chat_id=chat_id, parts_sent=number)]
        counters: dict[str, JsonValue] = {"platform": self.platform.name, "parts": len(parts)}
        host.keep(envelope.body, {**envelope.hop, **counters})
        return []

    async def probe(self) -> str:
        """What the platform says."""
        return await self.platform.probe()

    async def stop(self) -> None:
        """Close the connections."""
        await self.platform.close()

    async def _deliver(
        self, chat_id: int | str, part: str, name: str, envelope: Envelope, host: Host
    ) -> None:
        if await host.recall(name) is not None:
            return
        key = derived_id(envelope.id, name)

        async def send() -> None:
            await self.platform.send(chat_id, part, key=key)

        await patiently(send, budget_s=self.params.retry_budget_ms / 1000, pause=self._pause)
        await host.record(name, b"1")


def _error(code: str, detail: str, **facts: JsonValue) -> Emission:
    hop: dict[str, JsonValue] = {
        "msg_type": "proxy_inbound_error",
        "finish_reason": "error",
        "error_code": code,
        "detail": detail,
        **facts,
    }
    return Emission(hop=hop, body=Body.of())
