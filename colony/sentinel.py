"""Sentinel: which server a name stands for at this moment.

An address names sentinels and a service, and the sentinels say who holds it. Where they disagree,
the newest failover counts.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from colony.errors import ServerUnavailable, ServerUnfit

SCHEME: Final = "redis+sentinel"
PORT: Final = 26379
ASK_TIMEOUT_S: Final = 1.0

_OWN_LOGIN: Final = {"sentinel_username": "username", "sentinel_password": "password"}


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """What `redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE[/DB][?OPTIONS]` names.

    `login`, with its `@`, and `tail`, database and options, are those of the server. The sentinels
    have a login of their own, where any: the options `sentinel_username` and `sentinel_password`.
    """

    sentinels: tuple[tuple[str, int], ...]
    service: str
    login: str
    tail: str
    sentinel_login: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> Self:
        """The address that `url` is; raises ValueError, which tells no secret, where it is none."""
        parts = urlsplit(url)
        login, at, places = parts.netloc.rpartition("@")
        service, slash, database = parts.path.removeprefix("/").partition("/")
        sentinels = tuple(found for place in places.split(",") if (found := _place(place)))
        whole = len(sentinels) == places.count(",") + 1 and service
        if parts.scheme != SCHEME or not whole or not (database.isdecimal() or not slash):
            raise ValueError(f"an address of sentinels is {SCHEME}://HOST:PORT,HOST:PORT/SERVICE")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        own = {_OWN_LOGIN[name]: options.pop(name) for name in _OWN_LOGIN if name in options}
        query = f"?{urlencode(options)}" if options else ""
        return cls(
            sentinels=sentinels,
            service=unquote(service),
            login=login + at,
            tail=f"/{database or 0}{query}",
            sentinel_login=own,
        )

    def server(self, host: str, port: int) -> str:
        """The address of the server itself, when it is there."""
        bracketed = f"[{host}]" if ":" in host else quote(host)
        return f"redis://{self.login}{bracketed}:{port}{self.tail}"


def names_sentinels(url: str) -> bool:
    """Whether an address is one of sentinels, well formed or not."""
    return url.startswith(f"{SCHEME}://")


class Sentinels:
    """The sentinels of one address, asked over connections that stay open between questions."""

    def __init__(self, url: str) -> None:
        self._address = ServiceAddress.parse(url)
        self._sentinels = Sentinel(  # type: ignore[no-untyped-call]
            self._address.sentinels,
            sentinel_kwargs={
                **self._address.sentinel_login,
                "socket_timeout": ASK_TIMEOUT_S,
                "socket_connect_timeout": ASK_TIMEOUT_S,
                "retry": Retry(NoBackoff(), 0),
                "protocol": 2,
            },
        )

    async def locate(self) -> str:
        """The address of the server that holds the service now.

        Raises ServerUnavailable where no sentinel tells, or where they find the server down;
        ServerUnfit where all that answer refuse the login.
        """
        clients, service = self._sentinels.sentinels, self._address.service
        # All at once: one that cannot be reached must not hold up the answer of the others.
        answers = await asyncio.gather(
            *(client.sentinel_master(service) for client in clients), return_exceptions=True
        )
        states = [answer for answer in answers if isinstance(answer, dict)]
        if not states:
            raise _unanswered(service, [a for a in answers if isinstance(a, BaseException)])
        newest = max(states, key=lambda state: (state["config-epoch"], not _down(state)))
        if _down(newest):
            raise ServerUnavailable(detail=f"the sentinels find the server of {service!r} down")
        return self._address.server(newest["ip"], newest["port"])

    async def close(self) -> None:
        """Close the connections; a question opens them again."""
        await self._sentinels.aclose()


def _place(text: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname, parts.port or PORT) if parts.hostname else None
    except ValueError:
        return None


def _down(state: Mapping[str, Any]) -> bool:
    return bool(state["is_sdown"] or state["is_odown"])


def _unanswered(service: str, errors: list[BaseException]) -> Exception:
    for error in errors:
        if not isinstance(error, (RedisError, OSError)):
            raise error
    told = "; ".join(dict.fromkeys(str(error) or "no answer" for error in errors))
    refused = [e for e in errors if isinstance(e, (AuthenticationError, NoPermissionError))]
    kind = ServerUnfit if refused else ServerUnavailable
    return kind(detail=f"no sentinel tells who holds {service!r}: {told}")
