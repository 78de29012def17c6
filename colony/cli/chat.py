"""`chat`: a conversation with an agent in a terminal."""

import asyncio
import json
import signal
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from colony.cli.failures import INTERRUPTED
from colony.cli.options import asks_colony

if TYPE_CHECKING:
    from colony.agent.asks import Verdict
    from colony.agent.events import Event
    from colony.agent.record import SessionRecord
    from colony.cli.lines import Lines
    from colony.config import Config
    from colony.engine import Engine, Run

COMMANDS: Final = {
    "/retry": "make the step again that has failed",
    "/compact": "fold the oldest part of the session",
    "/new": "begin another session",
    "/quit": "leave; the session stays",
}
CHOICES: Final[dict[str, "Verdict"]] = {"y": "allow_once", "a": "allow_always", "n": "deny"}
QUESTION: Final = "y once, a always, n no, e edit the arguments"


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
    from colony.cli.lines import Lines

    async def talk(engine: "Engine") -> None:
        found = await engine.session(session) if session else await engine.create_session(agent)
        with Lines(sys.stdin.fileno()) as lines:
            await _Chat(engine, agent, lines, found).hold()

    with_engine(config, talk)


class _Chat:
    def __init__(
        self, engine: "Engine", agent: str, lines: "Lines", session: "SessionRecord"
    ) -> None:
        self._engine = engine
        self._agent = agent
        self._lines = lines
        self._session = session.id
        self._run: Run | None = None
        self._cancelling: asyncio.Task[bool] | None = None
        # The run that was under way before anybody typed anything.
        self._left = engine.attach(session.id, session.run_id) if session.live else None

    async def hold(self) -> None:
        """Talk until the input ends or somebody leaves."""
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        assert here is not None
        loop.add_signal_handler(signal.SIGINT, self._interrupted, here)
        try:
            click.echo(f"session {self._session}", err=True)
            if self._left is not None:
                await self._follow(self._left)
            while (line := await self._prompted()) is not None:
                if not await self._heard(line.strip()):
                    return
        except asyncio.CancelledError:
            raise click.exceptions.Exit(INTERRUPTED) from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _interrupted(self, here: "asyncio.Task[Any]") -> None:
        if self._run is None:
            self._lines.give_up()
        elif self._cancelling is None:
            self._cancelling = asyncio.create_task(self._run.cancel())
            self._lines.give_up()
        else:
            # It was asked for once, and nothing came of it.
            here.cancel()

    async def _prompted(self) -> str | None:
        if self._lines.ended:
            return await self._lines.next()
        click.echo("> ", nl=False)
        line = await self._lines.next()
        if line is None:
            click.echo()
        return line

    async def _heard(self, line: str) -> bool:
        """Do what a line says; False where that is to leave."""
        from colony.errors import ColonyError

        try:
            match line:
                case "":
                    pass
                case "/quit":
                    return False
                case "/new":
                    self._session = (await self._engine.create_session(self._agent)).id
                    click.echo(f"session {self._session}", err=True)
                case "/compact":
                    folded = await self._engine.compact(self._session)
                    click.echo("folded" if folded else "nothing was to be folded")
                case "/retry":
                    await self._follow(await self._engine.retry(self._session))
                case _ if line.startswith("/"):
                    for name, what in COMMANDS.items():
                        click.echo(f"{name:9} {what}")
                case _:
                    await self._follow(await self._engine.run(self._session, line))
        except ColonyError as error:
            click.echo(f"{error.code}: {error}", err=True)
        return not (self._lines.ended and self._run is not None)

    async def _follow(self, run: "Run") -> None:
        """Show a run to its end, and answer what it asks; it stays `_run` where it was left."""
        from colony.cli.cards import Talk

        self._run, self._cancelling, talk = run, None, Talk()
        async with aclosing(run.events()) as events:
            async for event in events:
                talk.show(event)
                if event.kind == "permission.ask" and not await self._answered(run, event, talk):
                    return
        self._run = None

    async def _answered(self, run: "Run", event: "Event", talk: Any) -> bool:
        """Answer an ask that still waits; False where nobody is there to answer it."""
        from colony.cli.agents import actor
        from colony.cli.cards import arguments
        from colony.errors import ColonyError

        told: Any = event.payload
        pending = [asked.ask.id for asked in await self._engine.asks(self._session)]
        if told["ask_id"] not in pending:
            return True
        talk.line(f"? {told['tool']} {arguments(told['args'])}  ({told['reason']})")
        answer = await self._chosen()
        if answer is None and self._lines.ended:
            click.echo(f"it waits: colony asks answer {told['ask_id']} allow_once", err=True)
            return False
        if answer is None:
            return True
        try:
            decision = await run.resolve(told["ask_id"], **answer, actor=actor())
        except ColonyError as error:
            click.echo(f"{error.code}: {error}", err=True)
            return True
        if answer["verdict"] == "allow_always" and not decision.learned:
            click.echo("allowed this once: nothing tells this call from others")
        return True

    async def _chosen(self) -> dict[str, Any] | None:
        """An answer that means something; None where the input ended or the run is cancelled."""
        while True:
            click.echo(f"  {QUESTION}: ", nl=False)
            line = await self._lines.next()
            if line is None:
                click.echo()
                return None
            choice, _, rest = line.strip().partition(" ")
            if choice in CHOICES:
                reason = rest.strip() if choice == "n" else ""
                return {"verdict": CHOICES[choice], "reason": reason}
            if choice == "e" and (edited := _edited(rest)) is not None:
                return {"verdict": "allow_once", "args": edited}


def _edited(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    click.echo('  e {"name": "value"} replaces the arguments')
    return None
