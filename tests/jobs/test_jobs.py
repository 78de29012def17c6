"""Cells that run as jobs: what a job gives is published once, however it and its workers end."""

import os
import signal
from pathlib import Path

import pytest

from colony.keys import GROUP
from colony.testing.redis_server import RedisServer
from tests.jobs.job_colony import JobColony, text_of


async def test_a_job_handles_an_envelope_and_publishes_what_the_cell_gives(
    colony: JobColony,
) -> None:
    await colony.serve()

    outputs = await colony.outputs(await colony.ask("/work", "say hello"))

    assert [text_of(output) for output in outputs] == ["hello by a job"]


async def test_a_tool_that_runs_as_a_job_answers_its_call(colony: JobColony) -> None:
    await colony.serve()

    found = await colony.outputs(await colony.ask("/change", "say hello"))

    assert [output["body"]["messages"] for output in found] == [
        [{"origin": "tool", "type": "tool_result", "id": "c1", "text": "hello by a job"}]
    ]


async def test_what_a_job_raises_leaves_by_the_edges_of_its_cell(colony: JobColony) -> None:
    await colony.serve()

    (output,) = await colony.outputs(await colony.ask("/work", "raise no luck"))

    assert output["hop"]["error_code"] == "script_failed"
    assert "no luck" in text_of(output)


# The cell's own timeout comes first; where it is not let to, the job process's does.
LATE = {"script_timeout", "job_timeout"}


@pytest.mark.parametrize(
    ("act", "codes"),
    [
        ("spin", LATE),
        ("print", LATE),
        ("sleep", {"script_timeout"}),
        ("segfault", {"job_failed"}),
        ("allocate", {"script_failed"}),
        ("fork", LATE),
    ],
)
async def test_a_job_that_misbehaves_is_an_error_and_leaves_nothing(
    colony: JobColony, act: str, codes: set[str]
) -> None:
    _, jobs = await colony.serve(timeout_ms=2_000)

    (output,) = await colony.outputs(await colony.ask("/work", act))
    after = await colony.outputs(await colony.ask("/work", "say still here"))

    assert output["hop"]["error_code"] in codes, text_of(output)
    assert [text_of(output) for output in after] == ["still here by a job"]
    assert jobs.running
    await colony.until(lambda: not colony.survivors(), "end of all that was started")


async def test_of_what_a_job_prints_the_beginning_is_passed_on(colony: JobColony) -> None:
    _, jobs = await colony.serve(timeout_ms=2_000)

    await colony.outputs(await colony.ask("/work", "print"))
    await colony.until(lambda: "bytes more were printed" in jobs.log, "end of what was printed")

    assert 1_000_000 < jobs.log.count("x") < 1_100_000


async def test_a_job_that_swallows_everything_is_killed(colony: JobColony) -> None:
    await colony.serve(timeout_ms=1_000)

    (output,) = await colony.outputs(await colony.ask("/block", "forever"))

    assert output["hop"]["error_code"] == "job_timeout"
    assert "it was killed" in text_of(output)


@pytest.mark.parametrize(("act", "target"), [("grandchild", "/look"), ("leave", "/work")])
async def test_a_process_that_a_job_leaves_in_another_session_is_gone(
    colony: JobColony, act: str, target: str
) -> None:
    await colony.serve(timeout_ms=1_500)

    await colony.outputs(await colony.ask(target, act))

    await colony.until(lambda: not colony.survivors(), "end of the process in a session of its own")


@pytest.mark.parametrize("code", [0, 3])
async def test_a_job_that_leaves_its_process_is_one_error_at_once(
    colony: JobColony, code: int
) -> None:
    await colony.serve()

    (output,) = await colony.outputs(await colony.ask("/work", f"exit {code}"))

    assert output["hop"]["error_code"] == "job_failed"
    assert text_of(output).endswith(f"an exit with {code}")


@pytest.mark.parametrize("target", ["/work", "/look", "/change"])
async def test_a_job_whose_process_is_killed_is_one_error(colony: JobColony, target: str) -> None:
    _, jobs = await colony.serve()
    trace_id = await colony.ask(target, "gate never")
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    os.kill(colony.horse(jobs), signal.SIGKILL)
    (output,) = await colony.outputs(trace_id)

    assert output["hop"]["error_code"] == "job_failed"
    assert "SIGKILL" in text_of(output)
    assert ("is not known" in text_of(output)) == (target == "/change")


async def test_a_job_is_found_again_by_the_worker_that_takes_over(colony: JobColony) -> None:
    worker, _ = await colony.serve()
    trace_id = await colony.ask("/change", "gate open")
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    worker.kill()
    other = colony.fleet.worker()
    await colony.until(lambda: bool(other.events("serving")), "second worker")
    colony.go_on("open")
    outputs = await colony.outputs(trace_id)

    assert [text_of(output) for output in outputs] == ["went on"]
    assert colony.noted() == ["begun gate", "done gate"]


async def test_a_job_goes_on_while_no_worker_waits_for_it(colony: JobColony) -> None:
    worker, _ = await colony.serve()
    trace_id = await colony.ask("/work", "gate open")
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    worker.kill()
    await worker.ended()
    colony.go_on("open")
    await colony.until(lambda: "done gate" in colony.noted(), "end of the job")
    colony.fleet.worker()

    assert [text_of(output) for output in await colony.outputs(trace_id)] == ["went on"]
    assert colony.noted() == ["begun gate", "done gate"]


async def test_a_job_process_told_to_end_lets_its_job_come_to_its_end(colony: JobColony) -> None:
    _, jobs = await colony.serve()
    trace_id = await colony.ask("/change", "gate open")
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    jobs.terminate()
    await colony.until(lambda: bool(jobs.events("stopping")), "drain")
    colony.go_on("open")

    assert [text_of(output) for output in await colony.outputs(trace_id)] == ["went on"]
    assert await jobs.ended() == 0


async def test_a_job_that_outlives_the_drain_is_begun_again_elsewhere(colony: JobColony) -> None:
    await colony.apply()
    colony.fleet.router()
    colony.fleet.worker()
    jobs = colony.fleet.jobs(environment={"COLONY_DRAIN_S": "0.2"})
    trace_id = await colony.ask("/work", "gate open")
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    jobs.terminate()
    assert await jobs.ended() == 0
    colony.fleet.jobs()
    await colony.until(lambda: colony.noted() == ["begun gate"] * 2, "second job")
    colony.go_on("open")

    assert [text_of(output) for output in await colony.outputs(trace_id)] == ["went on"]


async def test_a_call_that_changes_something_is_not_begun_twice(colony: JobColony) -> None:
    await colony.apply()
    colony.fleet.router()
    colony.fleet.worker()
    jobs = colony.fleet.jobs(environment={"COLONY_DRAIN_S": "0.2"})
    trace_id = await colony.ask("/change", "gate never")
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    jobs.terminate()
    assert await jobs.ended() == 0
    colony.fleet.jobs()
    (output,) = await colony.outputs(trace_id)

    assert output["hop"]["error_code"] == "outcome_unknown"
    assert output["body"]["messages"][0]["id"] == "c1"
    assert colony.noted() == ["begun gate"]


@pytest.mark.parametrize("target", ["/work", "/change"])
async def test_a_job_that_nobody_takes_is_an_error(colony: JobColony, target: str) -> None:
    await colony.apply(timeout_ms=100, message_timeout=1)
    colony.fleet.router()
    colony.fleet.worker()

    (output,) = await colony.outputs(await colony.ask(target, "say nothing"))

    assert output["hop"]["error_code"] == "no_job_worker"
    assert "colony jobs" in text_of(output)
    assert not await colony.link.command("KEYS", "rq:job:*")


@pytest.mark.parametrize("point", ["after_handle", "before_commit", "after_commit"])
@pytest.mark.parametrize("target", ["/work", "/change"])
async def test_a_job_that_dies_around_its_commit_gives_one_result(
    colony: JobColony, target: str, point: str
) -> None:
    await colony.apply()
    colony.fleet.router()
    colony.fleet.worker()
    jobs = colony.fleet.jobs(armed=f"{point}=crash")

    (output,) = await colony.outputs(await colony.ask(target, "say hello"))

    await colony.until(lambda: bool(jobs.events("fault")), "fault")
    assert await colony.letters.list(limit=10) == []
    failed = output["hop"].get("error_code")
    # What was recorded before the commit is the answer; what was not recorded is an error.
    assert failed == (None if target == "/change" or point == "after_commit" else "job_failed")


async def test_a_job_of_a_trace_that_has_ended_is_not_begun(colony: JobColony) -> None:
    await colony.apply()
    colony.fleet.router()
    colony.fleet.worker()
    trace_id = await colony.ask("/work", "say nothing")
    await colony.until_waiting(1)

    await colony.traces.end(trace_id, "cancelled", "a test")
    jobs = colony.fleet.jobs()
    await colony.until(lambda: bool(jobs.events("job_begun")), "job")
    await colony.until_waiting(0)

    assert colony.noted() == []
    assert await colony.outputs(trace_id) == []


async def test_a_script_runs_as_a_job(colony: JobColony) -> None:
    await colony.serve()

    (output,) = await colony.outputs(await colony.ask("/script", "hello"))

    assert text_of(output) == "HELLO"


async def test_rq_may_have_a_server_of_its_own(colony: JobColony, redis_binary: Path) -> None:
    with RedisServer.start(redis_binary) as server:
        await colony.apply()
        colony.fleet.router()
        colony.fleet.worker("--rq-url", server.url)
        colony.fleet.jobs("--rq-url", server.url)

        outputs = await colony.outputs(await colony.ask("/work", "say hello"))

    assert [text_of(output) for output in outputs] == ["hello by a job"]
    assert await colony.link.command("KEYS", "rq:job:*") == []


async def test_a_worker_has_no_more_jobs_in_hand_than_the_cell_allows(colony: JobColony) -> None:
    await colony.apply(concurrency=2)
    colony.fleet.router()
    colony.fleet.worker()
    for _ in range(5):
        await colony.ask("/work", "say nothing")

    await colony.until_waiting(2)

    pending = await colony.link.command("XPENDING", colony.keys.cell("/work"), GROUP)
    assert pending[0] == 2


async def test_a_worker_that_takes_over_jobs_goes_on_with_other_work(colony: JobColony) -> None:
    worker, _ = await colony.serve()
    waiting = [await colony.ask("/work", "gate open") for _ in range(2)]
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    worker.kill()
    colony.fleet.worker()
    await colony.until_taken_over("/work", len(waiting))
    (output,) = await colony.outputs(await colony.ask("/sink", "meanwhile"))

    assert text_of(output) == "meanwhile"
    colony.go_on("open")
    for trace_id in waiting:
        assert [text_of(output) for output in await colony.outputs(trace_id)] == ["went on"]
