"""Agents: what the commands about sessions and runs have in common."""

import getpass
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from colony.access import Access
    from colony.agent.record import SessionRecord
    from colony.config import Config
    from colony.engine import Engine

T = TypeVar("T")


def with_engine(config: "Config", talk: Callable[["Engine"], Awaitable[T]]) -> T:
    """What `talk` comes to, over an engine that is closed afterwards."""
    from colony.cli.session import ask
    from colony.engine import Engine

    async def run(access: "Access") -> T:
        async with Engine(access) as engine:
            return await talk(engine)

    return ask(config, run)


async def named(engine: "Engine", name: str) -> tuple["SessionRecord", str]:
    """The session of that id with the id of its newest run, or a run of that id with its session.

    Raises SessionNotFound.
    """
    from colony.errors import SessionNotFound

    with suppress(SessionNotFound):
        session = await engine.session(name)
        return session, session.run_id
    record = await engine.record(name)
    if record is None:
        raise SessionNotFound(session_id=name)
    return await engine.session(record.session), name


def actor() -> str:
    """Who answers an ask, as its approval names them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
