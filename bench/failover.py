"""Failovers under real sentinels with traffic running: what was lost, by whom, and what was not.

`python -m bench.failover [--failovers N]` kills, asks and freezes in turn, prints a line after
each, then the sums, and ends with an error where anything but Redis lost a message, or where one
was doubled or stalled.
"""

import argparse
import asyncio
import shutil
import sys
import time
from itertools import cycle
from pathlib import Path

from colony.testing.nursery import Nursery
from colony.testing.redis_server import RedisServer
from colony.testing.replicated_server import ReplicatedServer
from tests.faults.colony_at_work import KINDS, colony_at_work
from tests.faults.failover import HOWS, Account, account, come_back, fail_over

PAUSE_S = 0.1


async def play(binary: Path, failovers: int) -> Account:
    """What became of everything that was accepted over so many failovers."""
    with (
        Nursery() as nursery,
        RedisServer.start(binary) as journal,
        ReplicatedServer.start(binary) as servers,
    ):
        async with colony_at_work(nursery, servers.url, journal.url) as colony:
            await colony.start()
            colony.keep_sending("slow", *KINDS, pause_s=PAUSE_S)
            await colony.answers(4)
            for number, how in zip(range(1, failovers + 1), cycle(HOWS), strict=False):
                began = time.monotonic()
                old = await fail_over(how, servers, colony)
                seconds = time.monotonic() - began
                accepted = len(colony.asked)
                print(f"{number}: {how}, {seconds:.1f} s; accepted so far {accepted}", flush=True)
                await come_back(how, servers, old)
            return await account(colony)


def main() -> None:
    """Play, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--failovers", type=int, default=30, metavar="N")
    given = parser.parse_args()
    binary = shutil.which("redis-server")
    if binary is None:
        sys.exit("redis-server is not on PATH")
    found = asyncio.run(play(Path(binary), given.failovers))
    print(found)
    if not found.clean:
        sys.exit(found.told())


if __name__ == "__main__":
    main()
