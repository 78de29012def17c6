"""Conversation: lines go to an agent, what comes of them is shown, and what it asks is answered."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import click

from colony.access.run_follower import Frame
from colony.agent.record import SessionRecord
from colony.cli.agents import actor
from colony.cli.asking import QUESTION, Answer, answer_of, ask_lines
from colony.cli.cards import Talk
from colony.cli.failures import INTERRUPTED, complain
from colony.cli.lines import Lines
from colony.cli.screen import faint
from colony.engine import Engine, Run
from colony.errors import AskNotPending, ColonyError, StaleRunControl

COMMANDS: Final = {
    "/retry": "make the step again that has failed",
    "/compact": "fold the oldest part of the session",
    "/new": "begin another session",
    "/quit": "leave; the session stays",
}
SETTLED: Final = frozenset({"approval", "permission.expired", "permission.retract"})

Inbox = asyncio.Queue[Frame | None]


class Conversation:
    """A talk over one session after the other of an agent."""

    def __init__(self, engine: Engine, lines: Lines, session: SessionRecord) -> None:
        self._engine = engine
        self._agent = session.agent
        self._lines = lines
        self._session = session.id
        # The run that was under way before anybody typed anything.
        self._found = engine.attach(session.id, session.run_id) if session.live else None
        # How to end what is under way, and whether somebody wants that.
        self._stop: Callable[[], Awaitable[object]] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._settled: set[str] = set()
        self._asked = ""

    async def hold(self) -> None:
        """Talk until the input ends or somebody leaves."""
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        assert here is not None
        loop.add_signal_handler(signal.SIGINT, self._interrupted, here)
        try:
            click.echo(f"session {self._session}", err=True)
            if self._found is not None and not await self._follow(self._found):
                return
            while (line := await self._prompted()) is not None:
                if not await self._heard(line.strip()):
                    return
        except asyncio.CancelledError:
            click.echo("left; a run that is under way goes on", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _interrupted(self, here: "asyncio.Task[Any]") -> None:
        if self._stop is not None and self._stopping is None:
            self._stopping = asyncio.create_task(_told(self._stop))
            self._lines.give_up()
        elif self._stop is None and self._lines.awaited:
            self._lines.give_up()
        else:
            # It was wanted before and nothing came of it, or there is nothing to end.
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
        """Do what a line says; False where nobody goes on afterwards."""
        try:
            match line:
                case "":
                    return True
                case "/quit":
                    return False
                case "/new":
                    self._session = (await self._engine.create_session(self._agent)).id
                    click.echo(f"session {self._session}", err=True)
                case "/compact":
                    await self._compact()
                case "/retry":
                    return await self._follow(await self._engine.retry(self._session))
                case _ if line.startswith("/"):
                    for name, what in COMMANDS.items():
                        click.echo(f"{name:9} {what}")
                case _:
                    return await self._follow(await self._engine.run(self._session, line))
        except ColonyError as error:
            complain(error.code, str(error))
        return True

    async def _compact(self) -> None:
        async with self._stoppable(self._cancel_newest):
            folded = await self._engine.compact(self._session)
        session = await self._engine.session(self._session)
        if session.state == "completed":
            click.echo("folded" if folded else "nothing was to be folded")
        else:
            click.echo(f"{session.state}{f', {session.error}' if session.error else ''}")

    async def _cancel_newest(self) -> None:
        session = await self._engine.session(self._session)
        if session.live:
            await self._engine.cancel(session.id, session.run_id)

    async def _follow(self, run: Run) -> bool:
        """Show a run to its end, and answer what it asks; False where an ask of it is left."""
        talk, inbox = Talk(), Inbox()
        async with self._stoppable(run.cancel), self._listening(run, inbox):
            while (frame := await inbox.get()) is not None:
                if frame.phase == "gap":
                    talk.line(faint("- some of it may be missing; it is told anew -"))
                    talk = Talk()
                event = frame.event
                if event is None:
                    continue
                talk.show(event)
                if event.kind == "permission.ask":
                    talk.rest()
                    if not await self._answered(run, event.payload):
                        return False
        return True

    @asynccontextmanager
    async def _stoppable(self, stop: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """What Ctrl-C ends meanwhile."""
        self._stop, self._stopping = stop, None
        try:
            yield
        finally:
            self._stop = None

    @asynccontextmanager
    async def _listening(self, run: Run, inbox: Inbox) -> AsyncIterator[None]:
        """Frames of a run go into the inbox meanwhile, though somebody thinks about an answer."""
        listener = asyncio.create_task(self._listen(run, inbox))
        listener.add_done_callback(lambda _: inbox.put_nowait(None))
        try:
            yield
            if listener.done():
                await listener
        finally:
            listener.cancel()
            await asyncio.wait([listener])

    async def _listen(self, run: Run, inbox: Inbox) -> None:
        async with aclosing(run.frames()) as frames:
            async for frame in frames:
                inbox.put_nowait(frame)
                if frame.event is not None and frame.event.kind in SETTLED:
                    self._settle(str(frame.event.payload["ask_id"]))

    def _settle(self, ask_id: str) -> None:
        self._settled.add(ask_id)
        if ask_id == self._asked:
            self._lines.give_up()

    async def _answered(self, run: Run, told: Mapping[str, Any]) -> bool:
        """Answer an ask that still waits; False where nobody is there to answer it."""
        ask_id = told["ask_id"]
        if ask_id not in [asked.ask.id for asked in await self._engine.asks(self._session)]:
            return True
        # Nothing that was typed before it was shown can have been meant for it.
        self._lines.forget_typed()
        for line in ask_lines(told):
            click.echo(line)
        while (answer := await self._chosen(ask_id)) is not None:
            if await self._resolved(run, ask_id, answer):
                return True
        if ask_id in self._settled or self._stopping is not None:
            self._lines.forget_typed()
            return True
        click.echo(f"it waits: colony asks answer {ask_id} allow_once|allow_always|deny", err=True)
        return False

    async def _chosen(self, ask_id: str) -> Answer | None:
        """An answer that means something; None where none comes, or none is wanted any more."""
        self._asked = ask_id
        try:
            while ask_id not in self._settled and self._stopping is None:
                click.echo(f"  {QUESTION}: ", nl=False)
                line = await self._lines.next()
                if line is None:
                    click.echo()
                    return None
                if answer := answer_of(line):
                    return answer
                if line.strip().startswith("e"):
                    click.echo('  e {"name": "value"} replaces the arguments')
        finally:
            self._asked = ""
        return None

    async def _resolved(self, run: Run, ask_id: str, answer: Answer) -> bool:
        """Whether the ask waits no longer; an answer that did not arrive is asked for again."""
        try:
            decision = await run.resolve(
                ask_id, answer.verdict, answer.reason, args=answer.args, actor=actor()
            )
        except ColonyError as error:
            complain(error.code, str(error))
            return isinstance(error, AskNotPending | StaleRunControl)
        if answer.verdict == "allow_always" and not decision.learned:
            click.echo("allowed this once: nothing tells this call from others")
        return True


async def _told(stop: Callable[[], Awaitable[object]]) -> None:
    try:
        await stop()
    except ColonyError as error:
        complain(error.code, str(error))
