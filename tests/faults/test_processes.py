"""Processes that die, freeze, leave or lose a reply at every point there is.

Whatever happens to one of them, every message that was accepted ends exactly once. A group of
points is tried side by side, each in a colony of its own. `python -m bench.faults` tries every
fault at every point, two hundred times over.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony import faults
from colony.link import Link
from colony.testing.nursery import Nursery
from colony.testing.redis_server import RedisServer
from tests.faults.agents.rows import rows as rows_of_agents
from tests.faults.rows import ACTIONS, Action, Role, Row, rows
from tests.faults.trial import Ground, Result, run

AT_ONCE = 6

# Death and a freeze are tried everywhere; what is milder, where a message is on its way.
EVERYWHERE = ("crash", "stop")
ON_THE_WAY = {"after_read", "after_handle", "after_quiet_read"} | {
    f"{when}_{script}" for when in ("before", "after") for script in ("commit", "settle", "birth")
}

# What an operator asks for, what happens to an envelope nobody can read, and what mends or tidies
# up: only something that was broken before makes a process pass there. Sources and budgets have
# trials of their own.
NOT_TRIED = {
    "adopt",
    "announce",
    "birth_marked",
    "bury",
    "correct",
    "forget_consumers",
    "heads",
    "lease_source",
    "permitted",
    "publish_topology",
    "raise_mark",
    "release_source",
    "replay",
    "settle_allowance",
    "store_expire",
    "take_allowance",
    "write_off",
}


@pytest.fixture
async def ground(
    redis_server: RedisServer, redis_url: str, nursery: Nursery
) -> AsyncIterator[Ground]:
    link = Link(redis_url)
    yield Ground(redis_url, link, nursery)
    await link.close()


async def trials(ground: Ground, role: Role, action: Action) -> dict[str, Result]:
    """A trial of each row of a role with this action, by name."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row) -> tuple[str, Result]:
        async with slots:
            return row.name, await run(ground, row, seed=0)

    chosen = [
        row
        for row in rows()
        if (row.place.role, row.action) == (role, action)
        and (action in EVERYWHERE or row.place.point in ON_THE_WAY)
    ]
    return dict(await asyncio.gather(*(one(row) for row in chosen)))


def complaints(results: dict[str, Result]) -> str:
    """What went wrong, by row."""
    return "\n".join(
        "\n".join((name, *result.sums.notes))
        for name, result in results.items()
        if not result.clean
    )


# A stall is told from a slow machine by patience alone.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ["router", "worker", "store", "keeper", "api"])
async def test_every_message_ends_once_whatever_happens_to_a_process(
    ground: Ground, role: Role, action: Action
) -> None:
    results = await trials(ground, role, action)

    assert results
    assert not complaints(results)


def test_every_point_of_a_role_is_tried() -> None:
    tried = {row.place.point for row in rows()} | {row.point for row in rows_of_agents()}
    left = {point.partition("_")[2] for point in faults.points() - tried}

    assert left == NOT_TRIED
