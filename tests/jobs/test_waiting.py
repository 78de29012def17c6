"""Ordering a job and waiting for it: once for each entry, and never for ever."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from colony.errors import CellError, JobFailed, JobUntaken, ServerUnavailable
from colony.jobs.order import END, INTERRUPTED, KEEP_S, Order, queue_of
from colony.jobs.waiting import Jobs
from colony.keys import Keys
from colony.testing.claims import eventually

KEYS = Keys("waiting")
ORDER = Order(
    server="s",
    stream=KEYS.cell("/work"),
    entry="1700000000000-0",
    path="/work",
    version=1,
    timeout_ms=60_000,
)


@pytest.fixture
async def jobs(redis_url: str) -> AsyncIterator[Jobs]:
    made = Jobs(redis_url, KEYS, silence_s=0.2)
    yield made
    await made.close()


@pytest.fixture
def queue(redis_url: str) -> Queue:
    return Queue(queue_of(KEYS), connection=Redis.from_url(redis_url), serializer=JSONSerializer)


async def test_a_job_that_is_ordered_twice_lies_in_the_queue_once(jobs: Jobs, queue: Queue) -> None:
    twice = [asyncio.create_task(jobs.run(ORDER, patience_s=60)) for _ in range(2)]
    job = await _ordered(queue)

    assert queue.job_ids == [ORDER.job_id]
    job.set_status("finished")
    assert await asyncio.gather(*twice) == [None, None]
    assert queue.job_ids == [ORDER.job_id]


async def test_an_order_holds_json_and_expires(jobs: Jobs, queue: Queue) -> None:
    waiting = asyncio.create_task(jobs.run(ORDER, patience_s=60))
    job = await _ordered(queue)

    assert job.kwargs == ORDER.model_dump()
    assert (job.result_ttl, job.failure_ttl) == (KEEP_S, KEEP_S)
    assert 0 < queue.connection.ttl(job.key) <= 60 + KEEP_S
    waiting.cancel()


async def test_an_entry_of_another_server_is_another_job() -> None:
    assert ORDER.model_copy(update={"server": "t"}).job_id != ORDER.job_id
    assert ORDER.model_copy(update={"version": 2}).job_id == ORDER.job_id


async def test_a_job_that_nobody_takes_leaves_the_queue(jobs: Jobs, queue: Queue) -> None:
    failure = await jobs.run(ORDER, patience_s=0.05)

    assert isinstance(failure, JobUntaken)
    assert queue.job_ids == []
    assert not queue.connection.exists(Job.key_for(ORDER.job_id))


async def test_a_job_waits_behind_others_as_long_as_a_process_takes_them(
    jobs: Jobs, queue: Queue
) -> None:
    queue.connection.sadd(f"rq:workers:{queue.name}", "rq:worker:busy")
    queue.connection.hset("rq:worker:busy", "state", "busy")
    waiting = asyncio.create_task(jobs.run(ORDER, patience_s=0.05))
    job = await _ordered(queue)
    queue.connection.expire(job.key, 1)

    # It looked, found somebody, and let the job lie for longer.
    await eventually(lambda: queue.connection.ttl(job.key) > 1)

    assert not waiting.done()
    queue.connection.delete("rq:worker:busy")
    assert isinstance(await waiting, JobUntaken)


async def test_a_job_whose_process_gives_no_sign_of_life_has_failed(
    jobs: Jobs, queue: Queue
) -> None:
    waiting = asyncio.create_task(jobs.run(ORDER, patience_s=60))
    (await _ordered(queue)).set_status("started")

    failure = await waiting

    assert isinstance(failure, JobFailed)
    assert "gone" in str(failure)
    assert not queue.connection.exists(Job.key_for(ORDER.job_id))


async def test_a_job_that_was_interrupted_is_ordered_again(jobs: Jobs, queue: Queue) -> None:
    waiting = asyncio.create_task(jobs.run(ORDER, patience_s=60))
    job = await _ordered(queue)
    job.meta[END] = INTERRUPTED
    job.save_meta()
    queue.remove(job)
    job.set_status("failed")

    again = await _ordered(queue)

    assert again.meta == {}
    again.set_status("finished")
    assert await waiting is None


async def test_a_job_that_is_lost_as_it_is_taken_up_is_ordered_again(
    jobs: Jobs, queue: Queue
) -> None:
    waiting = asyncio.create_task(jobs.run(ORDER, patience_s=60))
    await _ordered(queue)
    # A job process takes it, and is killed before it says so.
    queue.connection.lmove(queue.key, queue.intermediate_queue_key, "LEFT", "RIGHT")

    again = await _ordered(queue)

    assert queue.job_ids == [ORDER.job_id]
    assert queue.connection.llen(queue.intermediate_queue_key) == 0
    again.set_status("finished")
    assert await waiting is None


async def test_a_job_that_is_gone_has_nothing_to_say(jobs: Jobs, queue: Queue) -> None:
    waiting = asyncio.create_task(jobs.run(ORDER, patience_s=60))
    (await _ordered(queue)).delete()

    assert await waiting is None


async def test_an_rq_that_is_away_is_asked_again_by_the_worker() -> None:
    jobs = Jobs("redis://127.0.0.1:1/0", KEYS)

    with pytest.raises(ServerUnavailable):
        await jobs.run(ORDER, patience_s=1)
    await jobs.close()


async def test_sentinels_are_refused() -> None:
    jobs = Jobs("redis+sentinel://h:1/name", KEYS)

    with pytest.raises(CellError, match="--rq-url"):
        await jobs.run(ORDER, patience_s=1)
    await jobs.close()


async def _ordered(queue: Queue) -> Job:
    return (await eventually(lambda: queue.jobs, "a job is ordered"))[0]
