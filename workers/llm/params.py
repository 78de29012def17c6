"""Params: what the tree says of an llm cell."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from colony.host import Limits
from workers.llm import system_state
from workers.llm.offline.scripted import ScriptedAnswer
from workers.llm.provider import Generation
from workers.llm.servers.wire import ContentNull, IdProfile

PositiveInt = Annotated[int, Field(ge=1)]
Limit = Annotated[int, Field(ge=0)]


class Params(Generation):
    """Which model, where, and what it may be told. An empty key sends none."""

    provider: Literal["openai", "anthropic", "scripted", "extractive"]
    api_key: SecretStr = SecretStr("")
    base_url: str = ""
    http_referer: str = ""
    x_title: str = ""
    stream: bool = False
    record_requests: bool = True
    external_timeout_ms: PositiveInt = 110_000
    first_byte_timeout_ms: PositiveInt = 300_000
    idle_timeout_ms: PositiveInt = 180_000
    text_calls: bool = False
    id_profile: IdProfile = "as_given"
    content_null: ContentNull = "null"
    attempts: PositiveInt = 3
    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    max_in_flight: Limit = 0
    max_concurrency: PositiveInt = 16
    system_order: tuple[str, ...] = ()
    system_max_slots: PositiveInt = 256
    system_max_leaf_bytes: PositiveInt = 65_536
    system_writable: tuple[str, ...] = ()
    state_scope: Literal["session", "cell", "trace"] = "session"
    script: tuple[ScriptedAnswer, ...] = ()

    @model_validator(mode="after")
    def _fits_its_provider(self) -> Self:
        if self.is_remote and not self.model:
            raise ValueError(f"provider {self.provider} needs a model")
        if bool(self.script) != (self.provider == "scripted"):
            raise ValueError("a script goes with provider scripted, and the other way round")
        return self

    @property
    def is_remote(self) -> bool:
        """Whether the model answers over the network, and may answer otherwise another time."""
        return self.provider in ("openai", "anthropic")

    @property
    def system_limits(self) -> system_state.Limits:
        """What the system state may hold."""
        return system_state.Limits(
            self.system_max_slots, self.system_max_leaf_bytes, self.system_writable
        )

    @property
    def call_limits(self) -> Limits:
        """What all workers together may ask of the endpoint."""
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.max_in_flight)
