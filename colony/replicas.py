"""Replicas: whether another server has what was written before, should this one lose it."""

from typing import Final

from colony.keys import Keys
from colony.link import Link

WAIT_MS: Final = 1_000
KEEP_MS: Final = 60_000


class Replicas:
    """The replicas of the server of one partition."""

    def __init__(self, url: str, keys: Keys) -> None:
        self._url = url
        self._keys = keys

    async def have_it(self, server: str | None) -> bool:
        """Whether at least one has, within a second, all that was written on `server` so far.

        Raises ServerChanged where another server is there now.
        """
        # Of its own: whoever waits for replicas keeps everybody else on the connection waiting.
        link = Link(self._url)
        try:
            # A server tells of the writes of this connection, and replicas take them in order: one
            # that has this has whatever came before.
            key = self._keys.replicated()
            await link.command("SET", key, "", "PX", KEEP_MS, server=server)
            return int(await link.command("WAIT", 1, WAIT_MS, server=server)) > 0
        finally:
            await link.close()
