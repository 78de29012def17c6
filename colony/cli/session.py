"""A session: one command's talk with a colony."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from colony.access import Access, promptly
from colony.config import Config
from colony.errors import ServerUnavailable
from colony.link import check_server
from colony.servers import server_of

T = TypeVar("T")


def look(config: Config, talk: Callable[[Access], Awaitable[T]]) -> T:
    """What `talk` comes to, which only reads: that is done on a server that is unfit as well.

    Raises ServerUnavailable where nobody answers.
    """

    async def run() -> T:
        async with Access(server_of(config), config.name) as access:
            with _reaching(config):
                await promptly(access.link.open())
            return await talk(access)

    return asyncio.run(run())


def ask(config: Config, talk: Callable[[Access], Awaitable[T]]) -> T:
    """What `talk` comes to, over a connection that is closed afterwards.

    Raises ServerUnavailable where nobody answers, ServerUnfit on a server that cannot be used.
    """

    async def run() -> T:
        async with Access(server_of(config), config.name) as access:
            with _reaching(config):
                await promptly(check_server(access.link))
            return await talk(access)

    return asyncio.run(run())


@contextmanager
def _reaching(config: Config) -> Iterator[None]:
    """Where nobody answers at the address that `colony up` left, its server was killed."""
    try:
        yield
    except ServerUnavailable as error:
        if config.redis is not None:
            raise
        detail = f"{error.facts['detail']}: the server of `colony up` does not answer; start it"
        raise ServerUnavailable(detail=f"{detail} again with `colony up`") from error
