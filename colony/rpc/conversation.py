"""Conversation: one call of a client that holds a session: what it says, and what it is told."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress

from colony.access.run_follower import Frame, RunFollower
from colony.agent.cursors import entry_of
from colony.agent.events import place_of
from colony.agent.record import SessionRecord
from colony.engine import Engine
from colony.errors import ColonyError, InvalidArgument
from colony.principals import Principal
from colony.rpc import agents_pb2 as pb
from colony.rpc import telling

Send = Callable[[pb.ServerMessage], Awaitable[None]]


class Conversation:
    """A session that a client holds.

    It ends once the client has said all, with the run that is then under way; where none is, once
    everything that is kept has been told.
    """

    def __init__(self, engine: Engine, who: Principal, send: Send) -> None:
        self._engine = engine
        self._who = who
        self._sending = asyncio.Lock()
        self._send = send
        self._session = ""
        self._take_along: set[str] = set()
        # The runs whose result was told, and with them the run that is none.
        self._ended = {""}
        self._marked = False

    async def hold(self, said: AsyncIterator[pb.ClientMessage]) -> None:
        """Hold it to its end; raises the error that ends it before."""
        first = await anext(said, None)
        if first is None or first.WhichOneof("kind") != "open":
            raise InvalidArgument(detail="a conversation begins with open")
        session = await self._opened(first.open)
        follower = RunFollower(session.id)
        if first.open.cursor:
            follower.place = place_of(entry_of(session.id, first.open.cursor))
        self._session = session.id
        await self._tell(telling.session(session))
        await self._tell(telling.accepted(first.id))
        hearing = asyncio.create_task(self._hear(said))
        try:
            async with aclosing(self._engine.feed.go_on(follower)) as frames:
                await self._follow(frames, hearing)
            if not hearing.result():
                # What was written a moment ago may not have been heard yet.
                async for frame in self._engine.feed.go_on(follower, follow=False):
                    await self._tell_frame(frame)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def take_along(self) -> None:
        """End the runs that were to go with the client."""
        for run_id in self._take_along - self._ended:
            with suppress(ColonyError):
                await self._engine.cancel(self._session, run_id)

    async def _opened(self, asked: pb.Open) -> SessionRecord:
        match asked.WhichOneof("session"):
            case "agent":
                return await self._engine.create_session(asked.agent, owner=self._who.name)
            case "session_id":
                return await self._engine.session(asked.session_id, owner=self._who.owner)
            case _:
                raise InvalidArgument(detail="open names an agent or a session")

    async def _follow(self, frames: AsyncGenerator[Frame], hearing: "asyncio.Task[str]") -> None:
        """Tell what comes until the client has said all and the run it leaves under way ended."""
        coming: asyncio.Task[Frame] | None = None
        try:
            while not (hearing.done() and hearing.result() in self._ended):
                if coming is None:
                    coming = asyncio.create_task(_next(frames))
                waited = {coming} if hearing.done() else {coming, hearing}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    frame, coming = coming.result(), None
                    await self._tell_frame(frame)
        finally:
            # Nothing is lost with it: a frame that has come was told.
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _hear(self, said: AsyncIterator[pb.ClientMessage]) -> str:
        """Answer what is said; the run that is under way when that is all, empty for none."""
        async for message in said:
            try:
                answer = await self._answer(message)
            except ColonyError as error:
                answer = telling.refused(message.id, error)
            await self._tell(answer)
        session = await self._engine.session(self._session)
        return session.run_id if session.live else ""

    async def _answer(self, message: pb.ClientMessage) -> pb.ServerMessage:
        match message.WhichOneof("kind"):
            case "prompt":
                return await self._prompted(message.id, message.prompt)
            case "resume_approval":
                return await self._resumed(message.id, message.resume_approval)
            case "cancel":
                run_id = message.cancel.run_id
                await self._engine.cancel(self._session, run_id)
                return telling.accepted(message.id, run_id=run_id)
            case "steer":
                asked = message.steer
                run_id = await self._engine.steer(
                    self._session,
                    asked.text,
                    run_id=asked.run_id,
                    idempotency_key=telling.key_in(asked.idempotency_key),
                )
                return telling.accepted(message.id, run_id=run_id)
            case _:
                raise InvalidArgument(detail="a message is a prompt, an approval or a control")

    async def _prompted(self, message_id: str, asked: pb.Prompt) -> pb.ServerMessage:
        how = telling.on_disconnect(asked.on_disconnect)
        run = await self._engine.run(
            self._session,
            asked.text,
            limits=telling.object_in(asked.limits_json, "limits_json"),
            idempotency_key=telling.key_in(asked.idempotency_key),
            on_disconnect=how,
        )
        if how == "cancel":
            self._take_along.add(run.id)
        return telling.accepted(message_id, run_id=run.id)

    async def _resumed(self, message_id: str, asked: pb.ResumeApproval) -> pb.ServerMessage:
        decision = await self._engine.resolve(
            self._session,
            asked.run_id,
            asked.ask_id,
            telling.verdict_of(asked.verdict),
            asked.reason,
            args=telling.object_in(asked.args_json, "args_json"),
            idempotency_key=telling.key_in(asked.idempotency_key),
            actor=self._who.name,
        )
        return telling.accepted(
            message_id, run_id=asked.run_id, verdict=decision.verdict, learned=decision.learned
        )

    async def _tell_frame(self, frame: Frame) -> None:
        if frame.phase == "mark" and self._marked:
            return
        self._marked = frame.phase == "mark" or (self._marked and frame.phase != "gap")
        await self._tell(telling.frame(frame))
        if frame.event is not None and frame.event.kind == "result":
            self._ended.add(frame.event.run_id)

    async def _tell(self, message: pb.ServerMessage) -> None:
        # Writing waits until the client has room for more.
        async with self._sending:
            await self._send(message)


async def _next(frames: AsyncGenerator[Frame]) -> Frame:
    return await anext(frames)
