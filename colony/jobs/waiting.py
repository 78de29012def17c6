"""Waiting: how a worker has a job done, and learns how it ended.

A job is ordered once for each entry, whoever orders it; who orders it again waits for the first.
"""

import asyncio
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from colony.errors import CellError, JobFailed, JobOverdue, JobUntaken, ServerUnavailable
from colony.jobs.order import (
    END,
    INTERRUPTED,
    KEEP_S,
    OVERDUE,
    SILENCE_S,
    WORK,
    Order,
    queue_of,
)
from colony.keys import Keys
from colony.link import Link
from colony.sentinel import names_sentinels

if TYPE_CHECKING:
    from redis import Redis

# How soon is looked again: after a tenth of the time that was waited, within these bounds.
FIRST_LOOK_S: Final = 0.01
LAST_LOOK_S: Final = 0.5
ANSWER_S: Final = 10.0
SILENCE: Final = "silence"

T = TypeVar("T")


class Jobs:
    """The jobs of one colony in the RQ at `url`; nothing is opened before the first is ordered.

    A job process that gives no sign of life for `silence_s` counts as gone.
    """

    def __init__(self, url: str, keys: Keys, *, silence_s: float = SILENCE_S) -> None:
        self.queue = queue_of(keys)
        self._silence_s = silence_s
        self._url = url
        self._link = Link(url)
        # RQ speaks to its server without an event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rq")

    async def run(self, order: Order, *, patience_s: float) -> JobFailed | None:
        """Why nothing will come of the job, once it has ended; None where it came to its end, or is
        not there any more.

        Where no job process is there to take it up, it is given up after `patience_s`. One that was
        interrupted because its process had to end, or ended as it took it up, is ordered again.
        """
        if names_sentinels(self._url):
            raise CellError(detail="jobs need a server without sentinels: name one with --rq-url")
        while True:
            await self._in_thread(partial(self._enqueue, order, patience_s))
            status, end = await self._wait(order, patience_s)
            if status == "failed" and end != INTERRUPTED:
                failure = await self._failure(order, end)
                if end == SILENCE:
                    # Nobody else would end it in RQ for minutes.
                    await self.forget(order)
                return failure
            if status not in ("failed", "queued"):
                return None
            await self.forget(order)
            if status == "queued":
                return JobUntaken(queue=self.queue)

    async def forget(self, order: Order) -> None:
        """The job is gone, so that it can be ordered again."""
        await self._in_thread(partial(self._delete, order))

    async def close(self) -> None:
        """Close what is open."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._link.close()

    async def _wait(self, order: Order, patience_s: float) -> tuple[str, str]:
        """The last status of a job and what the one who watched over it says of its end."""
        while True:
            status, end = await self._while_queued(order, patience_s)
            if status != "started":
                return status, end
            status, end = await self._while_started(order)
            if status != "queued":
                return status, end

    async def _while_queued(self, order: Order, patience_s: float) -> tuple[str, str]:
        began = asked_at = looked_at = _now()
        missing = False
        while True:
            status, _, meta = await self._told(order)
            if status != "queued":
                return status, _end(meta)
            if _now() - asked_at > patience_s:
                if not await self.attended():
                    return status, ""
                # It waits behind others. One that was taken up does not expire any more.
                await self._link.command("EXPIRE", self._key(order), _queued_s(patience_s), "XX")
                asked_at = _now()
            if _now() - looked_at > self._silence_s / 10:
                # Who takes a job up says so at once. One that is missed twice was taken by a
                # process that ended before it could.
                lies = await self._lies_in_queue(order)
                if missing and not lies:
                    return "failed", INTERRUPTED
                missing, looked_at = not lies, _now()
            await _pause(began)

    async def _while_started(self, order: Order) -> tuple[str, str]:
        began = beat_at = _now()
        beat = b""
        while True:
            status, beaten, meta = await self._told(order)
            if status != "started":
                return status, _end(meta)
            if beaten != beat:
                beat, beat_at = beaten, _now()
            silent = _now() - beat_at > self._silence_s
            if silent or _now() - began > order.killed_after_s + self._silence_s:
                return "failed", SILENCE
            await _pause(began)

    async def _told(self, order: Order) -> tuple[str, bytes, bytes]:
        fields = ("status", "last_heartbeat", "meta")
        status, beat, meta = await self._link.command("HMGET", self._key(order), *fields)
        return (status.decode() if status else "gone"), beat or b"", meta or b"{}"

    async def _lies_in_queue(self, order: Order) -> bool:
        queue = f"{_prefix()}:queue:{self.queue}"
        return await self._link.command("LPOS", queue, order.job_id) is not None

    async def attended(self) -> bool:
        """Whether a job process is known that takes from the queue."""
        return await self.processes() > 0

    async def processes(self) -> int:
        """How many job processes are known that take from the queue."""
        members = await self._link.command("SMEMBERS", f"{_prefix()}:workers:{self.queue}")
        return int(await self._link.command("EXISTS", *members)) if members else 0

    async def _failure(self, order: Order, end: str) -> JobFailed:
        if end == OVERDUE:
            return JobOverdue(detail=f"took longer than {order.timeout_ms} ms; it was killed")
        if end == SILENCE:
            return JobFailed(detail="its job process is gone")
        if end:
            return JobFailed(detail=f"its process was ended by {end}")
        return JobFailed(detail=await self._in_thread(partial(self._last_words, order)))

    async def _in_thread(self, do: Callable[[], T]) -> T:
        from redis.exceptions import ConnectionError, TimeoutError

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, do)
        except (ConnectionError, TimeoutError) as error:
            raise ServerUnavailable(detail=f"RQ: {error}") from error

    # In the thread

    @cached_property
    def _redis(self) -> "Redis":
        from redis import Redis

        return Redis.from_url(self._url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S)

    def _enqueue(self, order: Order, patience_s: float) -> None:
        from rq import Queue
        from rq.exceptions import DuplicateJobError
        from rq.serializers import JSONSerializer

        queue = Queue(self.queue, connection=self._redis, serializer=JSONSerializer)
        try:
            queue.enqueue_call(
                WORK,
                kwargs=order.model_dump(),
                job_id=order.job_id,
                unique=True,
                description=order.path,
                # What counts is our own clock, which cannot be caught.
                timeout=math.ceil(order.killed_after_s) + math.ceil(SILENCE_S),
                ttl=_queued_s(patience_s),
                result_ttl=KEEP_S,
                failure_ttl=KEEP_S,
            )
        except DuplicateJobError:
            return

    def _delete(self, order: Order) -> None:
        from rq.intermediate_queue import IntermediateQueue

        job = self._job(order)
        if job is not None:
            job.delete()
        # RQ takes an id that is left there for a job that is stuck, also where it is a later one.
        IntermediateQueue(f"{_prefix()}:queue:{self.queue}", self._redis).remove(order.job_id)

    def _last_words(self, order: Order) -> str:
        job = self._job(order)
        result = job.latest_result() if job is not None else None
        lines = ((result.exc_string if result else None) or "").strip().splitlines()
        return lines[-1] if lines else "it failed and has left no word"

    def _job(self, order: Order) -> Any:
        from rq.exceptions import NoSuchJobError
        from rq.job import Job
        from rq.serializers import JSONSerializer

        try:
            return Job.fetch(order.job_id, connection=self._redis, serializer=JSONSerializer)
        except NoSuchJobError:
            return None

    @staticmethod
    def _key(order: Order) -> str:
        return f"{_prefix()}:job:{order.job_id}"


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _pause(began: float) -> None:
    await asyncio.sleep(min(max((_now() - began) / 10, FIRST_LOOK_S), LAST_LOOK_S))


def _queued_s(patience_s: float) -> int:
    """How long a job that nobody waits for any more lies in the queue."""
    return math.ceil(patience_s) + KEEP_S


def _prefix() -> str:
    from rq.defaults import RQ_KEY_PREFIX

    return RQ_KEY_PREFIX


def _end(meta: bytes) -> str:
    try:
        return str(json.loads(meta).get(END, ""))
    except (ValueError, AttributeError):
        return ""
