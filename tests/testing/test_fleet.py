"""A fleet: role processes that a test may do anything to, and that never outlive it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from colony.testing.claims import block_until
from colony.testing.fleet import Fleet
from colony.testing.nursery import Nursery

HELLO = Path(__file__).parents[2] / "config" / "hello"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


@pytest.fixture
def fleet(nursery: Nursery, redis_url: str) -> Iterator[Fleet]:
    with Fleet(nursery, redis_url, "fleet") as started:
        yield started


async def test_a_fleet_answers_over_its_api(fleet: Fleet) -> None:
    await fleet.publish(HELLO)
    started = [fleet.router(), fleet.worker("--root", str(HELLO)), fleet.api()]
    for process in started:
        await process.serving()

    message = {"messages": [{"origin": "user", "type": "text", "text": "you"}]}
    async with httpx.AsyncClient(base_url=started[-1].address) as client:
        request = {"target": "/greeter", "body": message}
        answered = await client.post("/messages?wait=20", json=request, timeout=30)

    assert "you" in answered.json()["outputs"][0]["body"]["messages"][0]["text"]


async def test_each_signal_does_to_a_process_what_it_says(fleet: Fleet) -> None:
    process = await fleet.router().serving()
    process.freeze()
    await process.stands_still()
    process.resume()
    process.terminate()
    assert await process.ended() == 0
    assert process.events("stopped")

    killed = await fleet.again(process).serving()
    killed.kill()
    assert await killed.ended() == -9
    killed.kill()
    assert not killed.frozen


async def test_a_process_starts_with_its_own_faults_and_again_without(fleet: Fleet) -> None:
    process = fleet.worker(armed="before_lease_slot=crash")

    assert await process.ended() == -9
    assert await fleet.again(process).serving()


async def test_a_process_that_ends_instead_tells_why(fleet: Fleet) -> None:
    process = fleet.router(environment={"COLONY_CLAIM_IDLE_S": "never"})

    with pytest.raises(AssertionError, match="claim_idle_s"):
        await process.serving()
    assert await process.ended() == 2


async def test_a_prefix_runs_the_command(fleet: Fleet) -> None:
    process = await fleet.router(prefix=["env", "COLONY_NAME=other"]).serving()

    assert process.events("serving")[0]["colony"] == "other"
    process.kill()
    assert await process.ended() == -9


def test_nothing_outlives_a_test_that_is_killed(redis_url: str) -> None:
    script = (
        "import os, sys; from colony.testing.fleet import Fleet;"
        "from colony.testing.nursery import Nursery;"
        "fleet = Fleet(Nursery(), sys.argv[1]);"
        "frozen = fleet.worker(); frozen.freeze();"
        "apart = fleet.router(prefix=['env']);"
        "print(frozen.pid, apart.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, redis_url], capture_output=True, text=True, timeout=60
    )
    pids = [int(pid) for pid in run.stdout.split()]

    assert len(pids) == 2, run.stderr
    block_until(lambda: not any(map(_lives, pids)), "no role outlives its test")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
