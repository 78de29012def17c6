"""Conversation: one call of a client that holds a session: what it says, and what it is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress

from colony.agent.record import SessionRecord
from colony.engine import Engine
from colony.errors import ColonyError, InvalidArgument, StaleRunControl
from colony.principals import Principal
from colony.rpc import agents_pb2 as pb
from colony.rpc import telling

Send = Callable[[pb.ServerMessage], Awaitable[None]]


class Conversation:
    """A session that a client holds.

    It ends when the client has said all and no run is under way that it has begun or found.
    """

    def __init__(self, engine: Engine, who: Principal, send: Send) -> None:
        self._engine = engine
        self._who = who
        self._sending = asyncio.Lock()
        self._send = send
        self._session = ""
        self._under_way: set[str] = set()
        self._take_along: set[str] = set()
        self._said_all = False

    async def hold(self, said: AsyncIterator[pb.ClientMessage]) -> None:
        """Hold it to its end; raises the error that ends it before."""
        first = await anext(said, None)
        if first is None or first.WhichOneof("kind") != "open":
            raise InvalidArgument(detail="a conversation begins with open")
        session = await self._opened(first.open)
        self._session = session.id
        if session.live:
            self._under_way.add(session.run_id)
        await self._tell(telling.session(session))
        await self._tell(telling.accepted(first.id))
        following = asyncio.create_task(self._follow(first.open.cursor or None))
        hearing = asyncio.create_task(self._hear(said))
        try:
            await asyncio.wait({following, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            await hearing
            if self._under_way:
                await following
        finally:
            for task in (following, hearing):
                task.cancel()
            await asyncio.gather(following, hearing, return_exceptions=True)

    async def take_along(self) -> None:
        """End the runs that were to go with the client."""
        for run_id in self._take_along & self._under_way:
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

    async def _follow(self, cursor: str | None) -> None:
        async with aclosing(self._engine.follow(self._session, cursor=cursor)) as frames:
            async for frame in frames:
                await self._tell(telling.frame(frame))
                if frame.event is not None and frame.event.kind == "result":
                    self._under_way.discard(frame.event.run_id)
                    if self._said_all and not self._under_way:
                        return

    async def _hear(self, said: AsyncIterator[pb.ClientMessage]) -> None:
        async for message in said:
            try:
                answer = await self._answer(message)
            except ColonyError as error:
                answer = telling.refused(message.id, error)
            await self._tell(answer)
        self._said_all = True

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
                    idempotency_key=asked.idempotency_key or None,
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
            idempotency_key=asked.idempotency_key or None,
            on_disconnect=how,
        )
        # Under a key it may have ended before; its result was then told, or will not come again.
        if (await self._engine.session(self._session)).live:
            self._under_way.add(run.id)
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
            idempotency_key=asked.idempotency_key or None,
            actor=self._who.name,
        )
        return telling.accepted(
            message_id, run_id=asked.run_id, verdict=decision.verdict, learned=decision.learned
        )

    async def _tell(self, message: pb.ServerMessage) -> None:
        # Writing waits until the client has room for more.
        async with self._sending:
            await self._send(message)


async def tell_retry(engine: Engine, who: Principal, asked: pb.RetryRequest, send: Send) -> None:
    """Make the step again that a session has failed in, and tell the run to its result."""
    how = telling.on_disconnect(asked.on_disconnect)
    run = await engine.retry(
        asked.session_id,
        owner=who.owner,
        idempotency_key=asked.idempotency_key or None,
        on_disconnect=how,
    )
    done = False
    try:
        await send(telling.session(await engine.session(asked.session_id)))
        async with aclosing(run.frames()) as frames:
            async for frame in frames:
                done = frame.event is not None and frame.event.kind == "result"
                await send(telling.frame(frame))
    finally:
        if how == "cancel" and not done:
            with suppress(StaleRunControl):
                await asyncio.shield(run.cancel())
