"""`runs`: what agents do and did, seen and steered from outside."""

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import click

from colony.cli.failures import NOT_AS_HOPED
from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from colony.agent.record import SessionRecord
    from colony.config import Config
    from colony.engine import Engine, Result, Run

STATES: Final = ("idle", "running", "awaiting", "completed", "failed", "cancelled")
PAGE: Final = 100


@click.group()
def runs() -> None:
    """Look at sessions of agents and their runs, each named by its id; watch, cancel, retry one."""


@runs.command("list")
@click.option("--agent", help="Only those of this agent.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@formatted
@asks_colony
def list_runs(
    config: "Config", agent: str | None, state: str | None, limit: int, output: str
) -> None:
    """List sessions with their newest run, the one that changed last first."""
    from colony.cli.agents import with_engine
    from colony.cli.run_view import write_sessions
    from colony.cli.screen import write_json

    async def talk(engine: "Engine") -> list["SessionRecord"]:
        found: list[SessionRecord] = []
        cursor = ""
        while len(found) < limit:
            page = await engine.sessions(cursor=cursor, limit=PAGE)
            found += [
                session
                for session in page.sessions
                if agent in (None, session.agent) and state in (None, session.state)
            ]
            cursor = page.cursor
            if not cursor:
                break
        return found[:limit]

    sessions = with_engine(config, talk)
    if output == "json":
        write_json([session.model_dump(mode="json") for session in sessions])
    elif sessions:
        write_sessions(sessions)
    else:
        click.echo("no session is kept")


@runs.command()
@click.argument("which", metavar="ID")
@formatted
@asks_colony
def show(config: "Config", which: str, output: str) -> None:
    """Show a session: its state, what its run did, what it waits for, what was said.

    The run is the newest, or that of ID.
    """
    from colony.cli.agents import named, with_engine
    from colony.cli.run_view import session_told, write_session
    from colony.cli.screen import write_json

    async def talk(engine: "Engine") -> None:
        session, run_id = await named(engine, which)
        run = await engine.record(run_id) if run_id else None
        asks = await engine.asks(session.id)
        history = await engine.transcript(session.id)
        if output == "json":
            write_json(session_told(session, run, asks, history))
        else:
            write_session(session, run, asks, history)

    with_engine(config, talk)


@runs.command()
@click.argument("which", metavar="ID")
@click.option("--cursor", help="Go on behind this event.")
@click.option("--follow", is_flag=True, help="Go on with the next run of the session.")
@formatted
@asks_colony
def watch(config: "Config", which: str, cursor: str | None, follow: bool, output: str) -> None:
    """Print events as they come, from those that are kept on, to the end of the run.

    The run is the newest, or that of ID.
    """
    from colony.cli.agents import named, with_engine
    from colony.cli.run_view import write_frame, write_frame_json

    write = write_frame_json if output == "json" else write_frame

    async def talk(engine: "Engine") -> None:
        session, run_id = await named(engine, which)
        lives = session.live and session.run_id == run_id
        frames = engine.follow(
            session.id,
            cursor=cursor,
            run_id=None if follow else run_id,
            follow=follow or lives,
        )
        async with aclosing(frames):
            async for frame in frames:
                write(frame)
                if not follow and frame.event is not None and frame.event.kind == "result":
                    return

    with_engine(config, talk)


@runs.command()
@click.argument("which", metavar="ID")
@asks_colony
def cancel(config: "Config", which: str) -> None:
    """End a run as cancelled: that of ID, or the newest of a session."""
    from colony.cli.agents import named, with_engine

    async def talk(engine: "Engine") -> bool:
        session, run_id = await named(engine, which)
        return await engine.cancel(session.id, run_id)

    click.echo("cancelled" if with_engine(config, talk) else "it had ended before")


@runs.command()
@click.argument("which", metavar="ID")
@click.option(
    "--auto",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Up to N times, as long as nothing of the failed step was shown.",
)
@click.option("--yes", is_flag=True, help="Do not ask, though some of the step was shown.")
@asks_colony
def retry(config: "Config", which: str, auto: int | None, yes: bool) -> None:
    """Make the step again that a session has failed in, and wait for the end of the run.

    Where some of the step was shown a person has to want it: --auto does not, and without --yes it
    is asked for.
    """
    from colony.cli.agents import named, with_engine
    from colony.errors import StaleRunControl

    async def talk(engine: "Engine") -> "Result":
        session, run_id = await named(engine, which)
        if run_id != session.run_id:
            raise StaleRunControl(session_id=session.id)
        _allow(session, auto=auto is not None, yes=yes)
        result = await _ended(await engine.retry(session.id))
        for _ in range((auto or 1) - 1):
            if (result.disposition, result.progress) != ("retryable", "precommit"):
                break
            result = await _ended(await engine.retry(session.id))
        return result

    if with_engine(config, talk).state != "completed":
        raise click.exceptions.Exit(NOT_AS_HOPED)


def _allow(session: "SessionRecord", *, auto: bool, yes: bool) -> None:
    if session.progress != "visible" or yes:
        return
    if auto:
        detail = "some of the failed step was shown: --auto leaves that to a person; see --yes"
        raise click.UsageError(detail)
    click.confirm("Some of the failed step was shown. Make it again?", abort=True, err=True)


async def _ended(run: "Run") -> "Result":
    """How a run has ended; what it waits for meanwhile is told."""
    from colony.engine import Result
    from colony.errors import SessionNotFound

    click.echo(f"run {run.id}", err=True)
    async with aclosing(run.events()) as events:
        async for event in events:
            if event.kind == "permission.ask":
                ask_id = event.payload["ask_id"]
                verdicts = "allow_once|allow_always|deny"
                click.echo(f"it waits: colony asks answer {ask_id} {verdicts}", err=True)
            if event.kind == "result":
                result = Result.of(event)
                told = [part for part in (result.state, result.stop, result.error) if part]
                click.echo(", ".join(told))
                return result
    raise SessionNotFound(session_id=run.session_id)
