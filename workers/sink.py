"""The sink: where a message ends and becomes an output of its trace."""

from collections.abc import Sequence
from typing import ClassVar

from colony.cell import QUICK, Cell
from colony.envelope import Emission, Envelope
from colony.host import Host


class Sink(Cell):
    """Keep each message as an output of its trace and emit nothing."""

    default_concurrency: ClassVar[int] = QUICK

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """The message is kept once this handle is committed."""
        host.keep(envelope.body, envelope.hop)
        return []
