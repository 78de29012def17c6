"""Workers beside the one of `colony up`: what they are told."""

import asyncio

from colony.config import Config
from colony.keys import Keys
from colony.link import Link
from colony.slots import holders
from colony.testing.claims import eventually
from colony.trees import shipped
from colony.worker_processes import WorkerProcesses


async def test_a_worker_holds_on_for_as_long_as_the_settings_say(redis_url: str) -> None:
    """Whoever holds longer than others wait is taken for dead."""
    config = Config.load({"name": "beside", "claim_idle_s": 1.5})
    keys, link = Keys(config.name), Link(redis_url)
    processes = WorkerProcesses(config, redis_url, shipped("hello"), 1)
    serving = asyncio.create_task(processes.serve())

    found = await eventually(lambda: holders(link, keys, "worker"))
    seconds, _ = await link.command("TIME")

    assert found[0].until / 1000 - int(seconds) < 5
    processes.stop()
    await serving
    await link.close()
