"""Jobs and a server that goes away: what is under way is begun anew, and published once."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from colony.testing.nursery import Nursery
from colony.testing.redis_server import RedisServer
from tests.jobs.job_colony import JobColony, text_of


@pytest.fixture
async def own(nursery: Nursery, redis_binary: Path) -> AsyncIterator[tuple[RedisServer, JobColony]]:
    """A colony on a server that may be killed."""
    folder = Path(tempfile.mkdtemp(prefix="jobs-", dir="/tmp"))
    with RedisServer.start(redis_binary, fsync="always") as server:
        made = JobColony(nursery, server.url, folder)
        try:
            yield server, made
        finally:
            made.go_on("open")
            made.fleet.close()
            await made.link.close()
            shutil.rmtree(folder)


@pytest.mark.parametrize("target", ["/work", "/change"])
async def test_a_job_under_a_server_that_is_restarted_gives_one_result(
    own: tuple[RedisServer, JobColony], target: str
) -> None:
    server, colony = own
    await colony.serve()
    trace_id = await colony.ask(target, "gate open")
    await colony.until(lambda: "begun gate" in colony.noted(), "job")

    await asyncio.to_thread(server.restart)
    colony.go_on("open")
    (output,) = await colony.outputs(trace_id)

    # Nobody can tell the new server of what the old one had begun.
    expected = "outcome_unknown" if target == "/change" else None
    assert output["hop"].get("error_code") == expected
    assert colony.noted().count("begun gate") == (1 if target == "/change" else 2)
    assert text_of(output)
