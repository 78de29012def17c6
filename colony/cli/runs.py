"""`runs`: what agents do and did, seen and steered from outside."""

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import click

from colony.cli.failures import NOT_AS_HOPED
from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from colony.access.run_follower import Frame
    from colony.agent.record import RunRecord, SessionRecord
    from colony.config import Config
    from colony.engine import Engine, Result, Run
    from colony.runs.asks import PendingAsk

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
        _write_sessions(sessions)
    else:
        click.echo("no session is kept")


@runs.command()
@click.argument("which", metavar="ID")
@formatted
@asks_colony
def show(config: "Config", which: str, output: str) -> None:
    """Show a session: its state, what its newest run did, what it waits for, what was said."""
    from colony.cli.agents import named, with_engine
    from colony.cli.screen import write_json

    async def talk(engine: "Engine") -> None:
        session = await named(engine, which)
        asks = await engine.asks(session.id)
        record = await engine.record(session.run_id) if session.run_id else None
        rows = await engine.transcript(session.id)
        if output == "json":
            write_json(
                {
                    **session.model_dump(mode="json"),
                    "asks": [ask.to_json() for ask in asks],
                    "messages": [
                        row.model_dump(mode="json", exclude_defaults=True) for row in rows
                    ],
                }
            )
            return
        _write_session(session, record, asks)
        for row in rows:
            said = " ".join(text for text in row.texts if text)
            _write_pair(row.kind, said or "-")

    with_engine(config, talk)


@runs.command()
@click.argument("which", metavar="ID")
@click.option("--cursor", help="Go on behind this event.")
@click.option("--follow", is_flag=True, help="Go on with the next run of the session.")
@formatted
@asks_colony
def watch(config: "Config", which: str, cursor: str | None, follow: bool, output: str) -> None:
    """Print events as they come, from those that are kept on, to the end of the newest run."""
    from colony.cli.agents import named, with_engine

    async def talk(engine: "Engine") -> None:
        session = await named(engine, which)
        newest = None if follow else session.run_id
        frames = engine.follow(
            session.id, cursor=cursor, run_id=newest, follow=follow or session.live
        )
        async with aclosing(frames):
            async for frame in frames:
                _write_frame(frame, output)
                if not follow and frame.event is not None and frame.event.kind == "result":
                    return

    with_engine(config, talk)


@runs.command()
@click.argument("which", metavar="ID")
@asks_colony
def cancel(config: "Config", which: str) -> None:
    """End the newest run of a session as cancelled."""
    from colony.cli.agents import named, with_engine

    async def talk(engine: "Engine") -> bool:
        session = await named(engine, which)
        return await engine.cancel(session.id, session.run_id)

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

    async def talk(engine: "Engine") -> "Result":
        session = await named(engine, which)
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
    click.echo(f"run {run.id}", err=True)
    result = await run.result()
    click.echo(f"{result.state}, {result.stop}{f', {result.error}' if result.error else ''}")
    return result


def _write_sessions(sessions: "list[SessionRecord]") -> None:
    import time

    from colony.cli.screen import age, shortened, table

    now = time.time_ns() // 1_000_000
    rows = [("session", "agent", "state", "run", "asks", "changed", "title")]
    rows += [
        (
            session.id,
            session.agent,
            session.state,
            session.run_id or "-",
            str(session.pending or "-"),
            age(max(0, now - session.updated_at)),
            shortened(session.title, 40),
        )
        for session in sessions
    ]
    table(rows)


def _write_session(
    session: "SessionRecord", record: "RunRecord | None", asks: "list[PendingAsk]"
) -> None:
    from colony.cli.cards import arguments
    from colony.cli.screen import moment

    usage = session.usage
    _write_pair("session", f"{session.id} of {session.agent}, {session.state}")
    _write_pair("began", moment(session.created_at))
    if session.run_id:
        _write_pair("run", session.run_id)
    if record is not None:
        done = f"{record.turns} turns, {record.tool_calls} calls, {record.failures} failed in a row"
        _write_pair("done", done)
    if session.stop:
        error = f", {session.error}" if session.error else ""
        _write_pair("stop", f"{session.stop}{error}")
    _write_pair("tokens", f"{usage.input_tokens} + {usage.output_tokens}")
    _write_pair("window", f"{session.used} of {session.window or '-'}")
    for ask in asks:
        _write_pair("asks", f"{ask.ask.id} {ask.ask.tool} {arguments(ask.ask.args)}")


def _write_pair(name: str, value: str) -> None:
    from colony.cli.screen import faint, shortened

    click.echo(f"{faint(f'{name:10}')}{shortened(value, 160)}")


def _write_frame(frame: "Frame", output: str) -> None:
    from colony.cli.cards import summary
    from colony.cli.screen import faint, write_json_line

    event = frame.event
    if output == "json":
        told = {} if event is None else event.to_json()
        write_json_line({"phase": frame.phase, "cursor": frame.cursor, **told})
    elif event is None:
        click.echo(faint("- live -" if frame.phase == "mark" else "- gap -"))
    else:
        click.echo(f"{event.seq or '':>5}  {event.kind:22} {summary(event)}".rstrip())
