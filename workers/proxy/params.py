"""The params of a proxy: which platform, and how it is reached."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from colony.cell import Cell
from colony.loopback import is_loopback

Milliseconds = Annotated[int, Field(ge=1)]


class Params(Cell.Params):
    """One platform; what belongs to the other is left out.

    `emit_to` and `query_timeout_ms` are taken from trees written for another system and mean
    nothing here: edges decide where a message goes.
    """

    platform: Literal["telegram", "http"] = "telegram"

    bot_token: SecretStr = SecretStr("")
    base_url: str = "https://api.telegram.org"
    allowed_chats: tuple[int, ...] = ()
    long_poll_request_secs: Annotated[int, Field(ge=0, le=600)] = 30
    long_poll_timeout_ms: Milliseconds = 35_000
    lease_ms: Annotated[int, Field(ge=100)] = 15_000

    listen: str = "127.0.0.1:8430"
    token: SecretStr = SecretStr("")
    deliver_url: str = ""
    deliver_token: SecretStr = SecretStr("")

    send_timeout_ms: Milliseconds = 10_000
    retry_budget_ms: Annotated[int, Field(ge=0)] = 60_000
    max_concurrency: Annotated[int, Field(ge=1)] = 16

    emit_to: str = ""
    query_timeout_ms: int = 5_000

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        if self.long_poll_timeout_ms <= self.long_poll_request_secs * 1000:
            raise ValueError("long_poll_timeout_ms must be longer than long_poll_request_secs")
        if self.platform == "http" and not self.token.get_secret_value():
            host, _ = self.address
            if not is_loopback(host):
                raise ValueError(f"{self.listen} can be reached from other hosts: set a token")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that messages are taken at; raises ValueError where `listen` is none."""
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"{self.listen!r} is no host:port")
        return host.strip("[]"), int(port)
