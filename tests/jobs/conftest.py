"""Where the processes of a colony come from whose cells run as jobs."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from colony.testing.nursery import Nursery
from tests.jobs.job_colony import JobColony


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """One warm process for all tests."""
    with Nursery() as started:
        yield started


@pytest.fixture
async def colony(nursery: Nursery, redis_url: str) -> AsyncIterator[JobColony]:
    """A colony without processes so far."""
    folder = Path(tempfile.mkdtemp(prefix="jobs-", dir="/tmp"))
    made = JobColony(nursery, redis_url, folder)
    try:
        yield made
    finally:
        # A job process that has lost its parent ends when its job does.
        for gate in ("open", "never"):
            made.go_on(gate)
        made.fleet.close()
        await made.link.close()
        shutil.rmtree(folder)
