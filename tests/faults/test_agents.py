"""Runs of agents whose workers, interfaces and keepers die at every point and at every moment.

Each run ends once; its log and its text are told once; its history takes a strict model; what
changes something is begun once. `python -m bench.faults --agents` tries all faults, many times.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony.link import Link
from colony.testing.nursery import Nursery
from colony.testing.redis_server import RedisServer
from tests.faults.agents.rows import MOMENTS, AgentRow, Role, rows
from tests.faults.agents.trial import run
from tests.faults.trial import Ground, Result

AT_ONCE = 4

# What is made again by itself or by whoever asks, and what any message passes by as well, is left
# to the bench.
TRIED = {
    f"{when}_{script}"
    for when in ("before", "after")
    for script in ("commit", "begin_run", "file_asks", "resolve_ask", "finish_run", "end_run")
}


@pytest.fixture
async def ground(
    redis_server: RedisServer, redis_url: str, nursery: Nursery
) -> AsyncIterator[Ground]:
    link = Link(redis_url)
    yield Ground(redis_url, link, nursery)
    await link.close()


# A stall is told from a slow machine by patience alone.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("role", ["agent", "tools", "api", "keeper"])
async def test_a_run_ends_once_whoever_is_killed(ground: Ground, role: Role) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(row: AgentRow) -> tuple[str, Result]:
        async with slots:
            return row.name, await run(ground, row, seed=0)

    chosen = [
        row
        for row in rows()
        if (row.role, row.action) == (role, "crash") and (row.moment or row.point in TRIED)
    ]
    results = dict(await asyncio.gather(*map(one, chosen)))

    complaints = [
        "\n".join((name, *result.sums.notes))
        for name, result in results.items()
        if not result.clean
    ]
    assert not complaints, "\n".join(complaints)


def test_every_moment_is_tried() -> None:
    assert {row.moment for row in rows()} == {*MOMENTS, None}
