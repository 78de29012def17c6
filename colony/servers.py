"""Servers: on which server a colony is, by the settings of a process."""

from colony.config import Config
from colony.embedded import url_in
from colony.errors import ServerMissing


def server_of(config: Config) -> str:
    """The address of the server: the one that is named, or else that of `colony up`.

    Raises ServerMissing where there is neither.
    """
    url = config.redis or url_in(config.home)
    if url is None:
        raise ServerMissing(
            detail=f"no server runs for the colony {config.name!r}: start one with `colony up`, "
            "or point --redis or COLONY_REDIS_URL at one"
        )
    return url
