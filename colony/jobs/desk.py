"""The job desk: a worker's desk whose cells of isolation `job` are handled by job processes.

The worker holds the delivery for as long as the job takes; the job settles it.
"""

from collections.abc import Sequence

from colony import attempts
from colony.envelope import Emission, Envelope
from colony.errors import CellError, SettledElsewhere
from colony.hosting import LiveHost
from colony.jobs.order import Order
from colony.jobs.waiting import Jobs
from colony.keys import Keys
from colony.publication import Publication
from colony.streams import Delivery, Streams
from colony.worker import WorkerDesk
from colony.workshop import Hosted, Workshop


class JobDesk(WorkerDesk):
    """The streams of a workshop's cells, some of which run apart, as jobs."""

    def __init__(
        self,
        streams: Streams,
        keys: Keys,
        publication: Publication,
        workshop: Workshop,
        jobs: Jobs,
    ) -> None:
        super().__init__(streams, keys, publication, workshop)
        self.jobs = jobs

    def capacity(self, source: str) -> int:
        """How many envelopes of a cell may be in hand; of a job's cell only those that run."""
        hosted = self.workshop.cells.get(self.owner(source))
        if hosted is not None and self.is_apart(source):
            return hosted.cell.max_concurrency
        return super().capacity(source)

    async def perform(
        self, hosted: Hosted, envelope: Envelope, host: LiveHost, delivery: Delivery
    ) -> Sequence[Emission]:
        """What the cell makes of the envelope, where a job has not published it itself.

        Raises SettledElsewhere where it has, and JobFailed where nothing will come of it.
        """
        if not self.workshop.is_apart(hosted.spec):
            return await super().perform(hosted, envelope, host, delivery)
        limit_ms = self.limit_ms(hosted)
        order = Order.of(
            delivery,
            path=hosted.spec.path,
            version=self.publication.current.version,
            timeout_ms=hosted.cell.killed_after_ms(limit_ms),
        )
        failure = await self.jobs.run(order, patience_s=limit_ms / 1000)
        if not await self._waits(delivery):
            raise SettledElsewhere(entry=delivery.entry)
        if failure is None:
            await self.jobs.forget(order)
            raise CellError(detail="its job has left it for another try", retryable=True)
        found = await attempts.earlier(host)
        if found is not None:
            return found
        if await attempts.begun(host):
            detail = f"{failure}; it was begun, and what it has done is not known"
            raise type(failure)(detail=detail, queue=self.jobs.queue)
        raise failure

    async def _waits(self, delivery: Delivery) -> bool:
        """Whether nobody has settled the delivery."""
        source, entry = delivery.source, delivery.entry
        found = await self.streams.link.command(
            "XRANGE", source, entry, entry, server=delivery.server
        )
        return bool(found)
