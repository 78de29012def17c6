"""Cron: sweeps and reports ordered at intervals, by RQ's own scheduler.

Any number of schedulers may run: an interval has one job of each kind, whoever orders it. Nothing
rests on any of them.
"""

import asyncio
import math
import time
from typing import Final

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.cron import CronJob, CronScheduler
from rq.exceptions import DuplicateJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from colony.jobs import sweeps
from colony.jobs.order import queue_of
from colony.keys import Keys
from colony.log import get_logger

SWEEP_S: Final = 600
REPORT_S: Final = 3_600
LONGEST_S: Final = 300
LOOK_S: Final = 1.0
ANSWER_S: Final = 10.0

log = get_logger("colony.jobs")


class Tick(CronJob):
    """A function that is ordered once in each interval, however many schedulers there are.

    RQ's own would order it in pickles, which no job process reads.
    """

    def enqueue(self, connection: Redis) -> Job:
        """Order it, where nobody has for this interval."""
        assert self.interval is not None
        number = math.floor(time.time() / self.interval)
        queue = Queue(self.queue_name, connection=connection, serializer=JSONSerializer)
        try:
            return queue.enqueue_call(
                self.func_name,
                job_id=f"{self.name}-{number}",
                unique=True,
                timeout=LONGEST_S,
                ttl=self.interval,
                result_ttl=self.interval,
                failure_ttl=self.interval,
            )
        except DuplicateJobError:
            return Job(f"{self.name}-{number}", connection=connection, serializer=JSONSerializer)


class Cron:
    """A scheduler of the sweeps and reports of one colony."""

    def __init__(self, rq_url: str, keys: Keys) -> None:
        self.scheduler = CronScheduler(Redis.from_url(rq_url, socket_timeout=ANSWER_S))
        self.scheduler.get_jobs().extend(ticks_of(queue_of(keys)))
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """Order what is due until stopped; a server that is away is asked again."""
        while not self._stopping.is_set():
            try:
                await asyncio.to_thread(self.scheduler.enqueue_jobs)
            except RedisError as error:
                log.warning("cron_failed", detail=str(error))
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def stop(self) -> None:
        """Order nothing more."""
        self._stopping.set()


def ticks_of(queue: str) -> list[Tick]:
    """What is ordered at intervals."""
    every = {sweeps.sweep: SWEEP_S, sweeps.report: REPORT_S}
    return [
        Tick(queue, function, interval=seconds, name=f"{queue}-{function.__name__}")
        for function, seconds in every.items()
    ]
