"""`chat`: a conversation with an agent in a terminal."""

import sys
from typing import TYPE_CHECKING

import click

from colony.cli.options import asks_colony

if TYPE_CHECKING:
    from colony.agent.record import SessionRecord
    from colony.config import Config
    from colony.engine import Engine


@click.command()
@click.argument("agent")
@click.option("--session", metavar="ID", help="Go on with this session.")
@asks_colony
def chat(config: "Config", agent: str, session: str | None) -> None:
    """Talk with AGENT, line by line.

    Ctrl-C cancels the run that is under way, not the session; at the prompt it leaves, as Ctrl-D
    does. What it asks is answered here, or left pending at the end of the input.
    """
    from colony.cli.agents import with_engine
    from colony.cli.conversation import Conversation
    from colony.cli.lines import Lines

    async def talk(engine: "Engine") -> None:
        found = await _session(engine, agent, session)
        with Lines(sys.stdin.fileno()) as lines:
            await Conversation(engine, lines, found).hold()

    with_engine(config, talk)


async def _session(engine: "Engine", agent: str, session_id: str | None) -> "SessionRecord":
    """A session of the agent, new where none is named; another agent has none of that id."""
    from colony.errors import SessionNotFound

    if session_id is None:
        return await engine.create_session(agent)
    found = await engine.session(session_id)
    if found.agent != agent.removeprefix("/"):
        raise SessionNotFound(session_id=session_id)
    return found
