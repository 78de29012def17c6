"""A cell type for tests: what it does with an envelope is up to the test that runs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.host import Host

Act = Callable[[Envelope, Host], Awaitable[Sequence[Emission]]]


class Probe(Cell):
    """Does `ACTS[params.act]`; without one it passes its messages on."""

    class Params(Cell.Params):
        act: str = ""
        max_concurrency: int = 4
        ahead: int | None = None

    params: Params

    ACTS: ClassVar[dict[str, Act]] = {}

    @property
    def prefetch(self) -> int:
        return self.params.ahead or self.max_concurrency

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        act = self.ACTS.get(self.params.act)
        if act is not None:
            return await act(envelope, host)
        return [Emission(hop={"route": "on"}, body=envelope.body)]

    async def stop(self) -> None:
        act = self.ACTS.get("stop")
        if act is not None:
            await act(None, None)  # type: ignore[arg-type]
