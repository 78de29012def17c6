"""Job processes: what they take, what they refuse, what they leave behind."""

import asyncio
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
from redis import Redis
from rq import Callback, Queue
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from colony.jobs.order import KEEP_S, queue_of
from colony.testing.claims import eventually
from tests.jobs.job_colony import JobColony, text_of

BY_HAND = ("worker", "--worker-class", "colony.jobs.process.JobWorker", "--serializer", "json")


async def test_what_rq_keeps_of_a_job_expires(colony: JobColony, redis_url: str) -> None:
    await colony.serve()
    redis = Redis.from_url(redis_url)

    await colony.outputs(await colony.ask("/work", "say hello"))
    await colony.outputs(await colony.ask("/work", "segfault"))
    jobs = await _ended(redis, 2)

    for kind in ("job", "results"):
        keys = redis.keys(f"rq:{kind}:*")
        assert len(keys) == len(jobs)
        assert all(0 < redis.ttl(key) <= KEEP_S for key in keys)
    assert not redis.keys("rq:execution:*")
    assert not redis.keys("rq:executions:*")


@pytest.mark.parametrize("function", ["os.getcwd", "builtins.print", "colony.jobs.place.Place"])
async def test_a_job_process_calls_no_function_but_ours(
    colony: JobColony, redis_url: str, function: str
) -> None:
    _, jobs = await colony.serve()
    queue = _queue(colony, redis_url)

    job = queue.enqueue_call(function, job_id="foreign")

    assert await _status(job) == JobStatus.FAILED
    assert jobs.events("job_refused")


async def test_a_job_process_calls_no_hook(colony: JobColony, redis_url: str) -> None:
    _, jobs = await colony.serve()
    queue = _queue(colony, redis_url)

    job = queue.enqueue_call(
        "colony.jobs.sweeps.report", job_id="hooked", on_failure=Callback(print)
    )

    assert await _status(job) == JobStatus.FAILED
    assert jobs.events("job_refused")


async def test_a_job_process_reads_no_pickle(colony: JobColony, redis_url: str) -> None:
    _, jobs = await colony.serve()
    queue = Queue(queue_of(colony.keys), connection=Redis.from_url(redis_url))

    job = queue.enqueue_call("colony.jobs.sweeps.report", job_id="pickled")
    assert pickle.loads(job.data)

    assert await _status(job) == JobStatus.FAILED
    assert "JSON" in str(jobs.events("job_refused"))
    outputs = await colony.outputs(await colony.ask("/work", "say still here"))
    assert [text_of(output) for output in outputs] == ["still here by a job"]


async def test_nothing_of_a_job_outlives_a_job_process_that_is_killed(colony: JobColony) -> None:
    _, jobs = await colony.serve()
    await colony.ask("/work", "grandchild")
    await colony.until(lambda: bool(colony.survivors()), "process in a session of its own")

    os.kill(int(str(jobs.events("taking_jobs")[0]["pid"])), signal.SIGKILL)

    await colony.until(lambda: not colony.survivors(), "end of all that was started")
    await colony.until(lambda: len(jobs.events("taking_jobs")) == 2, "another job process")


async def test_rq_runs_a_job_process_by_hand(colony: JobColony, redis_url: str) -> None:
    await colony.apply()
    colony.fleet.router()
    colony.fleet.worker()
    environment = {
        **os.environ,
        "COLONY_NAME": colony.keys.name,
        "COLONY_REDIS_URL": redis_url,
        "PYTHONPATH": str(Path(__file__).parent / "handlers"),
        "JOB_JOURNAL": str(colony.journal),
    }
    program = str(Path(sys.executable).with_name("rq"))
    rq = await asyncio.create_subprocess_exec(
        program,
        *BY_HAND,
        *("--url", redis_url, queue_of(colony.keys)),
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        outputs = await colony.outputs(await colony.ask("/work", "say hello"))
    finally:
        rq.terminate()
        await rq.wait()

    assert [text_of(output) for output in outputs] == ["hello by a job"]
    assert rq.returncode == 0


async def test_several_job_processes_share_a_queue(colony: JobColony) -> None:
    await colony.apply()
    colony.fleet.router()
    colony.fleet.worker()
    jobs = colony.fleet.jobs("--processes", "2")

    asked = [await colony.ask("/work", "gate open") for _ in range(2)]
    await colony.until(lambda: colony.noted() == ["begun gate"] * 2, "two jobs at once")
    colony.go_on("open")

    for trace_id in asked:
        assert [text_of(output) for output in await colony.outputs(trace_id)] == ["went on"]
    assert len({str(event["pid"]) for event in jobs.events("taking_jobs")}) == 2


def _queue(colony: JobColony, url: str) -> Queue:
    connection = Redis.from_url(url)
    return Queue(queue_of(colony.keys), connection=connection, serializer=JSONSerializer)


async def _status(job: Job) -> JobStatus | None:
    """How a job has ended."""
    under_way = JobStatus.QUEUED, JobStatus.STARTED
    await eventually(lambda: job.get_status() not in under_way, "the job ends")
    return job.get_status()


async def _ended(redis: Redis, count: int) -> list[bytes]:
    def ended() -> list[bytes]:
        keys = [*redis.keys("rq:job:*")]
        states = {bytes(redis.hget(key, "status") or b"") for key in keys}
        return keys if len(keys) == count and states <= {b"finished", b"failed"} else []

    return await eventually(ended, f"{count} jobs end")
