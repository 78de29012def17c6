"""Sentinel: which server a name stands for at this moment.

An address names sentinels and a service, and the sentinels say who holds it. Where they disagree,
the newest failover counts.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
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
        # By hand: to a parser of URLs several hosts are none, and a bracket among them an error.
        scheme, _, rest = url.partition("://")
        place, _, query = rest.partition("?")
        netloc, _, path = place.partition("/")
        login, at, places = netloc.rpartition("@")
        service, slash, database = path.partition("/")
        sentinels = tuple(found for place in places.split(",") if (found := _place(place)))
        whole = len(sentinels) == places.count(",") + 1 and service
        if scheme != SCHEME or not whole or not (database.isdecimal() or not slash):
            raise ValueError(f"an address of sentinels is {SCHEME}://HOST:PORT,HOST:PORT/SERVICE")
        options = dict(parse_qsl(query, keep_blank_values=True))
        own = {_OWN_LOGIN[name]: options.pop(name) for name in _OWN_LOGIN if name in options}
        asked = f"?{urlencode(options)}" if options else ""
        return cls(
            sentinels=sentinels,
            service=unquote(service),
            login=login + at,
            tail=f"/{database or 0}{asked}",
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
            *(_ask(client, service) for client in clients), return_exceptions=True
        )
        found = [answer for answer in answers if isinstance(answer, _Answer)]
        if not found:
            raise _unanswered(service, [a for a in answers if isinstance(a, BaseException)])
        place, down = _newest(found)
        if down:
            raise ServerUnavailable(detail=f"the sentinels find the server of {service!r} down")
        return self._address.server(*place)

    async def close(self) -> None:
        """Close the connections; a question opens them again."""
        await self._sentinels.aclose()


def _place(text: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname, parts.port or PORT) if parts.hostname else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one sentinel tells; `down` is None where it does not tell it of the server it names."""

    epoch: int
    place: tuple[str, int]
    down: bool | None


async def _ask(client: Redis, service: str) -> _Answer:
    # To the sentinel that leads a failover, MASTER is the server that was replaced until the other
    # replicas follow, which one of them may hold up; the epoch is the new one by then. It is asked
    # first, so that the address is never older than the epoch it is weighed by.
    async with client.pipeline(transaction=False) as both:
        both.execute_command("SENTINEL MASTER", service)
        both.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", service)
        state, named = await both.execute(raise_on_error=False)
    for answer in (state, named):
        if isinstance(answer, Exception):
            raise answer
    if named is None:
        raise ResponseError("No such master with that name")
    place = (named[0].decode(), named[1])
    described = place == (state["ip"], state["port"])
    down = bool(state["is_sdown"] or state["is_odown"]) if described else None
    return _Answer(state["config-epoch"], place, down)


def _newest(answers: Sequence[_Answer]) -> tuple[tuple[str, int], bool]:
    """Who leads since the newest failover, and whether all that tell it find that server down.

    Where sentinels differ over the same failover, as after a reset, most of them count.
    """
    newest = max(answer.epoch for answer in answers)
    told: dict[tuple[str, int], list[bool | None]] = {}
    for answer in answers:
        if answer.epoch == newest:
            told.setdefault(answer.place, []).append(answer.down)
    down = {place: True in found and False not in found for place, found in told.items()}
    # The place itself comes last: who is listed or answers first must not matter.
    place = max(told, key=lambda each: (len(told[each]), not down[each], each))
    return place, down[place]


def _unanswered(service: str, errors: list[BaseException]) -> Exception:
    for error in errors:
        if not isinstance(error, (RedisError, OSError)):
            raise error
    told = "; ".join(dict.fromkeys(str(error) or "no answer" for error in errors))
    refused = [e for e in errors if isinstance(e, (AuthenticationError, NoPermissionError))]
    kind = ServerUnfit if refused else ServerUnavailable
    return kind(detail=f"no sentinel tells who holds {service!r}: {told}")
