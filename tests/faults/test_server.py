"""Whatever happens to the server, every message that was accepted ends once, as it had to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
import redis

from colony.errors import ServerUnavailable
from colony.keys import GROUP
from colony.testing.claims import block_until
from colony.testing.nursery import Nursery
from colony.testing.redis_server import RedisServer
from tests.faults.colony_at_work import KINDS, ColonyAtWork, colony_at_work
from tests.faults.tree import ask

LONGER_THAN_A_CLAIM_S = 1.0


@pytest.fixture
def server(redis_binary: Path) -> Iterator[RedisServer]:
    """A server of the test's own. What it answered is on disk."""
    with RedisServer.start(redis_binary, fsync="always") as started:
        yield started


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def colony(
    nursery: Nursery, server: RedisServer, redis_url: str
) -> AsyncIterator[ColonyAtWork]:
    async with colony_at_work(nursery, server.url, redis_url) as started:
        await started.start()
        yield started


@pytest.fixture
async def patient(
    nursery: Nursery, server: RedisServer, redis_url: str
) -> AsyncIterator[ColonyAtWork]:
    """A colony in which nobody takes what another holds as long as the test lasts."""
    environment = {"COLONY_CLAIM_IDLE_S": "60"}
    async with colony_at_work(nursery, server.url, redis_url, environment=environment) as started:
        await started.start()
        yield started


async def in_hand(colony: ColonyAtWork, path: str = "/a") -> bool:
    pending = await colony.link.command("XPENDING", colony.keys.cell(path), GROUP)
    return bool(pending[0])


async def test_a_server_that_is_stopped_or_killed_and_comes_back_costs_nothing(
    colony: ColonyAtWork, server: RedisServer
) -> None:
    colony.keep_sending(*KINDS)
    await colony.answers(4)
    await asyncio.to_thread(server.restart)
    await colony.answers(4)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.restart)
    await colony.answers(4)

    sums = await colony.finish()

    assert sums.clean, sums


async def test_a_server_that_takes_its_time_to_load_is_waited_for(
    colony: ColonyAtWork, server: RedisServer, admin: redis.Redis
) -> None:
    ballast = "for n = 1, 300000 do redis.call('SET', 'ballast:' .. n, n) end"
    await asyncio.to_thread(admin.eval, ballast, 0)
    colony.keep_sending(*KINDS)
    await colony.answers(4)
    told: set[str] = set()

    async def listen() -> None:
        while True:
            try:
                await colony.link.command("PING")
            except ServerUnavailable as error:
                told.add(str(error))
            await asyncio.sleep(0.001)

    listening = asyncio.create_task(listen())
    await asyncio.to_thread(server.restart)
    listening.cancel()
    await colony.answers(4)

    sums = await colony.finish()

    assert sums.clean, sums
    assert any("loading the dataset" in each for each in told), told


async def test_a_server_that_is_frozen_longer_than_a_claim_loses_and_doubles_nothing(
    colony: ColonyAtWork, server: RedisServer
) -> None:
    colony.keep_sending("slow", *KINDS)
    assert await colony.within(lambda: in_hand(colony))
    server.pause()
    await asyncio.sleep(LONGER_THAN_A_CLAIM_S)
    server.resume()
    await colony.answers(4)

    sums = await colony.finish()

    assert sums.clean, sums


async def test_a_server_that_was_demoted_is_left_and_taken_up_when_it_leads_again(
    patient: ColonyAtWork, admin: redis.Redis
) -> None:
    patient.keep_sending("slow", *KINDS)
    assert await patient.within(lambda: in_hand(patient))
    admin.replicaof("127.0.0.1", 1)

    async def left_alone() -> bool:
        return len(admin.client_list(_type="normal")) == 1

    # Who comes back to look is sent away.
    assert await patient.within(lambda: everybody_waits(patient))
    assert await patient.within(left_alone)
    admin.replicaof("NO", "ONE")

    sums = await patient.finish()

    assert sums.clean, sums


async def everybody_waits(colony: ColonyAtWork) -> bool:
    return all(process.events("server_unavailable") for process in colony.fleet.processes)


def without_replicas(admin: redis.Redis, server: RedisServer) -> None:
    admin.config_set("min-replicas-to-write", 1)


def with_enough_replicas(admin: redis.Redis, server: RedisServer) -> None:
    admin.config_set("min-replicas-to-write", 0)


def unable_to_save(admin: redis.Redis, server: RedisServer) -> None:
    # A folder in the place of the file lets the save fail, for root too.
    (server.data / "dump.rdb" / "full").mkdir(parents=True)
    admin.config_set("save", "3600 1")
    admin.bgsave()
    _saved(admin, "err")


def able_to_save(admin: redis.Redis, server: RedisServer) -> None:
    (server.data / "dump.rdb" / "full").rmdir()
    (server.data / "dump.rdb").rmdir()
    admin.bgsave()
    _saved(admin, "ok")


def _saved(admin: redis.Redis, status: str) -> None:
    def saved() -> bool:
        found = admin.info("persistence")
        under_way, last = found["rdb_bgsave_in_progress"], found["rdb_last_bgsave_status"]
        return not under_way and last == status

    block_until(saved, f"the server tried to save: {status}")


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param(without_replicas, with_enough_replicas, id="NOREPLICAS"),
        pytest.param(unable_to_save, able_to_save, id="MISCONF"),
    ],
)
async def test_a_server_that_forbids_writes_changes_nothing_and_blames_no_delivery(
    patient: ColonyAtWork,
    server: RedisServer,
    admin: redis.Redis,
    begin: Callable[[redis.Redis, RedisServer], None],
    end: Callable[[redis.Redis, RedisServer], None],
) -> None:
    await patient.send("slow", *KINDS, count=2)
    assert await patient.within(lambda: in_hand(patient))
    begin(admin, server)
    written = server.aof.stat().st_size

    with pytest.raises(ServerUnavailable):
        await ask(patient.link, patient.keys, "lull")
    assert await patient.within(lambda: everybody_waits(patient))
    assert await in_hand(patient)
    assert server.aof.stat().st_size == written

    end(admin, server)
    sums = await patient.finish()

    assert sums.clean, sums
    assert sums.repeats == 0
    assert await patient.attempts() == {}


async def test_a_full_server_takes_nothing_new_and_drains_what_it_has(
    patient: ColonyAtWork, admin: redis.Redis
) -> None:
    api = await patient.fleet.api().serving()
    asked = await patient.send("slow", "rounds", "ledger", "lull", count=2)
    large = await patient.send("large")
    assert await patient.within(lambda: in_hand(patient))
    admin.config_set("maxmemory", 1)
    born = await patient.link.command("ZCARD", patient.keys.open_traces())

    with pytest.raises(ServerUnavailable):
        await ask(patient.link, patient.keys, "lull")
    async with httpx.AsyncClient(base_url=api.address, timeout=30) as client:
        body = {"messages": [{"origin": "user", "type": "text", "text": "go"}]}
        refused = await client.post("/messages", json={"target": "/lull", "body": body})
    assert (refused.status_code, refused.json()["code"]) == (503, "server_full")
    assert await patient.link.command("ZCARD", patient.keys.open_traces()) <= born

    async def drained() -> bool:
        still = await patient.link.command("ZRANGE", patient.keys.open_traces(), 0, -1)
        return not {each.decode() for each in still} & {*asked}

    assert await patient.within(drained), (large, await patient.left())
    admin.config_set("maxmemory", 0)
    sums = await patient.finish()

    assert sums.clean, sums
    assert sums.repeats == 0
    assert await patient.attempts() == {}


async def test_a_server_that_loses_every_key_during_a_read_is_worked_with_at_once(
    colony: ColonyAtWork, admin: redis.Redis
) -> None:
    await colony.send("rounds")
    assert (await colony.finish()).clean
    colony.asked.clear()

    admin.flushall()
    await colony.send("rounds", "ledger", "lull", count=2)

    sums = await colony.finish()

    assert sums.clean, sums
    assert all(process.running for process in colony.fleet.processes)


async def test_a_server_that_forgets_its_scripts_all_the_time_is_told_them_again(
    colony: ColonyAtWork, admin: redis.Redis
) -> None:
    async def forget() -> None:
        while True:
            admin.script_flush()
            await asyncio.sleep(0.005)

    forgetting = asyncio.create_task(forget())
    colony.keep_sending(*KINDS)
    await colony.answers(12)
    forgetting.cancel()

    sums = await colony.finish()

    assert sums.clean, sums
    assert sums.repeats == 0


async def test_a_server_that_may_evict_is_refused_by_every_role(
    nursery: Nursery, server: RedisServer, admin: redis.Redis, redis_url: str
) -> None:
    async with colony_at_work(nursery, server.url, redis_url) as colony:
        admin.config_set("maxmemory-policy", "allkeys-lru")

        for process in (colony.router(), colony.worker()):
            assert await process.ended() == 3
            assert "noeviction" in process.log


async def test_a_server_that_is_told_to_evict_is_complained_of_and_not_ready(
    colony: ColonyAtWork, admin: redis.Redis
) -> None:
    api = await colony.fleet.api().serving()
    async with httpx.AsyncClient(base_url=api.address, timeout=30) as client:

        async def ready() -> int:
            return (await client.get("/readyz")).status_code

        assert await ready() == 200
        admin.config_set("maxmemory-policy", "volatile-lru")

        assert (await client.get("/readyz")).json()["code"] == "server_unfit"
        roles = [process for process in colony.fleet.processes if process is not api]

        async def complained() -> bool:
            return all(process.events("server_unfit") for process in roles)

        assert await colony.within(complained)
        assert all(process.running for process in roles)
        admin.config_set("maxmemory-policy", "noeviction")
        assert await ready() == 200

        async def relieved() -> bool:
            return all(process.events("server_fit") for process in roles)

        assert await colony.within(relieved)
