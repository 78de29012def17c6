"""Retry: one call of a client that has the step made again that its session has failed in."""

from contextlib import aclosing, suppress

from colony.engine import Engine, Run
from colony.errors import ColonyError
from colony.principals import Principal
from colony.rpc import agents_pb2 as pb
from colony.rpc import telling
from colony.rpc.conversation import Send


class Retry:
    """A retry that a client follows."""

    def __init__(self, engine: Engine, who: Principal, send: Send) -> None:
        self._engine = engine
        self._who = who
        self._send = send
        self._run: Run | None = None

    async def hold(self, asked: pb.RetryRequest) -> None:
        """Begin it, and tell the run to its result."""
        self._run = await self._engine.retry(
            asked.session_id,
            owner=self._who.owner,
            idempotency_key=telling.key_in(asked.idempotency_key),
            on_disconnect=telling.on_disconnect(asked.on_disconnect),
        )
        await self._send(telling.session(await self._engine.session(asked.session_id)))
        async with aclosing(self._run.frames()) as frames:
            async for frame in frames:
                await self._send(telling.frame(frame))

    async def take_along(self) -> None:
        """End the run where it was to go with the client; nothing where it has ended."""
        if self._run is not None and self._run.on_disconnect == "cancel":
            with suppress(ColonyError):
                await self._run.cancel()
