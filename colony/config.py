"""Config: the settings of a process, from the weakest source to the strongest.

Defaults, then the file `--config` names (TOML), then `COLONY_*` in the environment, then flags. A
secret may lie in a file that `COLONY_<NAME>_FILE` names. What belongs to a tree is in its
`colony.json` instead.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from colony.body import explain
from colony.errors import ConfigError
from colony.loopback import is_loopback
from colony.principals import Principals
from colony.sentinel import SCHEME, ServiceAddress, names_sentinels

PREFIX: Final = "COLONY_"
SECRETS: Final = ("redis_url", "rq_url", "api_token")

_NAME = re.compile(r"[a-z0-9-]{1,40}")
_PLAIN_SCHEMES = ("redis", "rediss", "unix")
_SCHEMES = (*_PLAIN_SCHEMES, SCHEME)


class Config(BaseSettings):
    """The settings of one process. Times in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    name: str = "colony"
    redis_url: SecretStr | None = None
    rq_url: SecretStr | None = None
    data: Path | None = None
    api: str = "127.0.0.1:8420"
    api_token: SecretStr | None = None
    api_tokens_file: Path | None = None
    grpc_port: Annotated[int, Field(ge=0, lt=65_536)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    drain_s: Annotated[float, Field(gt=0)] = 25.0
    claim_idle_s: Annotated[float, Field(ge=0.1, le=3_600)] = 60.0

    @classmethod
    def load(cls, flags: Mapping[str, object], *, file: Path | None = None) -> "Config":
        """The settings that these flags, the environment and `file` come to.

        A flag that is None was not given. Raises ConfigError with everything that is wrong.
        """
        if file is not None and not file.is_file():
            raise ConfigError(detail=f"there is no file {file}")
        given = {name: value for name, value in flags.items() if value is not None}

        class Sourced(cls, toml_file=file):  # type: ignore[valid-type, misc, call-arg]
            pass

        try:
            found = Sourced(**given)
        except ValidationError as error:
            raise ConfigError(detail=explain(error).replace("Value error, ", "")) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(detail=f"{file} is not TOML: {error}") from None
        except OSError as error:
            raise ConfigError(detail=f"{file} cannot be read: {error.strerror}") from None
        return cls.model_construct(**dict(found))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources, the strongest first."""
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, _SecretFiles(settings_cls), toml

    @property
    def redis(self) -> str | None:
        """The address of the server, where one is named."""
        return self.redis_url.get_secret_value() if self.redis_url else None

    @property
    def rq(self) -> str | None:
        """The address of the server that RQ uses, where it is another one."""
        return self.rq_url.get_secret_value() if self.rq_url else None

    @property
    def token(self) -> str | None:
        """What a client of the HTTP interface has to show, where anything."""
        return self.api_token.get_secret_value() if self.api_token else None

    @property
    def principals(self) -> Principals:
        """Who may use the HTTP interface; raises ConfigError where their file is broken."""
        return Principals(token=self.token, file=self.api_tokens_file)

    @property
    def home(self) -> Path:
        """Where the embedded server of this colony keeps its data.

        Raises ConfigError where it is not set and the user has no home.
        """
        if self.data is not None:
            return self.data
        try:
            state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        except RuntimeError:
            raise ConfigError(detail="no home directory: set COLONY_DATA or HOME") from None
        return Path(state) / "colony" / self.name

    @property
    def address(self) -> tuple[str, int]:
        """Host and port the HTTP interface listens on.

        Raises ConfigError where it could be reached from elsewhere and no token guards it.
        """
        host, port = split_address(self.api)
        guarded = self.token is not None or self.api_tokens_file is not None
        if not guarded and not is_loopback(host):
            raise ConfigError(
                detail=f"{self.api} can be reached from other hosts: set COLONY_API_TOKEN, "
                "COLONY_API_TOKEN_FILE or COLONY_API_TOKENS_FILE, or listen on 127.0.0.1"
            )
        return host, port

    @field_validator("name")
    @classmethod
    def _can_be_part_of_a_key(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("1 to 40 of a-z, 0-9 and -")
        return value

    @field_validator("redis_url")
    @classmethod
    def _is_an_address(cls, value: SecretStr | None) -> SecretStr | None:
        url = value.get_secret_value() if value is not None else None
        if url is not None and url.partition("://")[0] not in _SCHEMES:
            raise ValueError(f"an address starts redis://, rediss://, unix:// or {SCHEME}://")
        if url is not None and names_sentinels(url):
            ServiceAddress.parse(url)
        return value

    @field_validator("rq_url")
    @classmethod
    def _is_a_plain_address(cls, value: SecretStr | None) -> SecretStr | None:
        url = value.get_secret_value() if value is not None else None
        if url is not None and url.partition("://")[0] not in _PLAIN_SCHEMES:
            raise ValueError("the address of RQ starts redis://, rediss:// or unix://")
        return value

    @field_validator("api")
    @classmethod
    def _has_a_port(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("api_token")
    @classmethod
    def _is_not_empty(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value():
            raise ValueError("an empty token would let everybody in")
        return value


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; raises ValueError where it is something else."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _SecretFiles(PydanticBaseSettingsSource):
    """Secrets that lie in the files the environment names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = f"{PREFIX}{field_name.upper()}"
        named = os.environ.get(f"{variable}_FILE")
        if field_name not in SECRETS or not named:
            return None, field_name, False
        if os.environ.get(variable):
            raise ConfigError(detail=f"{variable} and {variable}_FILE are both set")
        try:
            return Path(named).read_text("utf-8").strip(), field_name, False
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(detail=f"{variable}_FILE cannot be read: {error}") from None

    def __call__(self) -> dict[str, Any]:
        found = {
            name: self.get_field_value(field, name)[0]
            for name, field in self.settings_cls.model_fields.items()
        }
        return {name: value for name, value in found.items() if value is not None}
