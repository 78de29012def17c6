"""Sentinel: another server leads, and the colony goes on by itself.

What a client was told of and the promoted server never saw is lost, by Redis; it is counted and
printed. Everything else ends exactly once. `python -m bench.failover` does more of the same.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from colony.testing.nursery import Nursery
from colony.testing.replicated_server import ReplicatedServer
from tests.faults.colony_at_work import KINDS, colony_at_work
from tests.faults.failover import ENOUGH, account, come_back, fail_over

pytestmark = pytest.mark.needs("redis-server")


@pytest.fixture
def servers() -> Iterator[ReplicatedServer]:
    with ReplicatedServer.start(Path(shutil.which("redis-server") or "")) as started:
        yield started


async def test_a_primary_that_is_killed_costs_what_its_replica_had_not_seen_and_nothing_more(
    nursery: Nursery, servers: ReplicatedServer, redis_url: str
) -> None:
    async with colony_at_work(nursery, servers.url, redis_url) as colony:
        await colony.start()
        colony.keep_sending("slow", *KINDS, pause_s=0.1)
        await colony.answers(4)

        await fail_over("kill", servers, colony)

        found = await account(colony)
        print(found)
        assert found.clean, found.told()
        assert found.lost_by_redis


async def test_a_failover_that_is_asked_for_is_followed_by_every_role(
    nursery: Nursery, servers: ReplicatedServer, redis_url: str
) -> None:
    async with colony_at_work(nursery, servers.url, redis_url) as colony:
        api = colony.fleet.api()
        await colony.start()
        colony.keep_sending("slow", *KINDS, pause_s=0.1)
        await colony.answers(4)

        await fail_over("command", servers, colony)

        async with httpx.AsyncClient(base_url=api.address, timeout=30) as client:
            body = {"messages": [{"origin": "user", "type": "text", "text": "go"}]}
            message = {"target": "/lull", "body": body}
            answered = await client.post("/messages?wait=20", json=message)
            assert answered.json()["outputs"][0]["body"]["messages"][0]["text"] == "woken"
            assert (await client.get("/readyz")).status_code == 200
        status = await _command_line("status", "--name", colony.keys.name, "--redis", servers.url)
        assert status["problems"] == []
        found = await account(colony)
        print(found)
        assert found.clean, found.told()


async def test_a_primary_that_was_frozen_and_wakes_as_an_old_one_is_not_worked_with(
    nursery: Nursery, servers: ReplicatedServer, redis_url: str
) -> None:
    # So long a claim, and with it patience with a silent server, that only sentinels can tell.
    environment = {"COLONY_CLAIM_IDLE_S": "60"}
    async with colony_at_work(nursery, servers.url, redis_url, environment=environment) as colony:
        await colony.start()
        colony.keep_sending("slow", *KINDS, pause_s=0.1)
        await colony.answers(4)

        old, new = servers.primary, servers.replica
        old.pause()
        await asyncio.to_thread(servers.await_leader, new)
        old.resume()

        async def left() -> bool:
            return not old.clients()

        assert await colony.within(left)
        assert old.leads
        await colony.answers(ENOUGH)
        await come_back("freeze", servers, old)

        assert not old.leads
        found = await account(colony)
        print(found)
        assert found.clean, found.told()


async def test_a_server_that_was_promoted_is_worked_with_while_another_replica_cannot_follow(
    nursery: Nursery, redis_url: str
) -> None:
    # So late do sentinels give up: the failover is not over before the other replica follows.
    binary, late = Path(shutil.which("redis-server") or ""), 600_000
    with ReplicatedServer.start(
        binary, replicas=2, down_after_ms=late, failover_timeout_ms=late
    ) as servers:
        async with colony_at_work(nursery, servers.url, redis_url) as colony:
            await colony.start()
            colony.keep_sending("slow", *KINDS, pause_s=0.1)
            await colony.answers(4)

            old, new, other = servers.nodes
            servers.hold_up(other)
            await asyncio.to_thread(servers.fail_over)
            await asyncio.to_thread(servers.await_leader, new)

            async def left() -> bool:
                return not old.clients()

            assert await colony.within(left)
            await colony.answers(ENOUGH)
            assert servers.failing_over
            servers.join()
            await asyncio.to_thread(servers.await_whole)

            assert not old.leads
            found = await account(colony)
            print(found)
            assert found.clean, found.told()


async def _command_line(*arguments: str) -> dict[str, object]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "colony.cli", *arguments, "--format", "json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    printed: dict[str, object] = json.loads(out)
    return printed
