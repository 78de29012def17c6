"""Sweeps and reports that RQ's cron orders: any number of schedulers, and nothing rests on them."""

import asyncio

import pytest
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from colony.body import Body, Entry
from colony.jobs import horse, sweeps
from colony.jobs.cron import Cron
from colony.jobs.order import queue_of
from colony.jobs.place import Place
from colony.link import Link
from colony.traces import Traces
from tests.jobs.job_colony import JobColony


async def test_two_schedulers_order_each_job_of_an_interval_once(
    colony: JobColony, redis_url: str
) -> None:
    both = [Cron(redis_url, colony.keys) for _ in range(2)]

    for cron in both:
        await asyncio.to_thread(cron.scheduler.enqueue_jobs)

    name = queue_of(colony.keys)
    queue = Queue(name, connection=Redis.from_url(redis_url), serializer=JSONSerializer)
    kinds = sorted(job_id.removeprefix(f"{name}-").split("-")[0] for job_id in queue.job_ids)
    # At the turn of an interval the second scheduler may be in the next one.
    assert set(kinds) == {"report", "sweep"}
    assert len(kinds) <= 4


async def test_a_sweep_that_is_repeated_changes_nothing(
    colony: JobColony, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await colony.apply()
    monkeypatch.setattr(horse, "here", Place(redis_url, colony.keys, {}))
    link = Link(redis_url)
    traces = Traces(link, colony.keys)
    birth = await traces.birth("/work", Body.of(Entry.say("user", "x")), ttl=64)
    await traces.end(birth.trace_id, "cancelled", "a test")

    await asyncio.gather(*(asyncio.to_thread(sweeps.sweep) for _ in range(2)))

    assert (await traces.get(birth.trace_id)).ended
    await link.close()


async def test_a_cron_beside_a_job_process_has_its_sweeps_run(colony: JobColony) -> None:
    await colony.apply()
    jobs = colony.fleet.jobs("--cron")

    await colony.until(lambda: bool(jobs.events("report")), "report")

    assert jobs.events("report")[0]["version"] == 1
    jobs.terminate()
    assert await jobs.ended() == 0
