"""`colony up` with a cell that runs as a job: a newcomer has nothing more to start."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE_S = 60
CELL = {"cell": {"type": "code", "isolation": "job"}, "params": {"handler": "own:shout"}}
HIVE = {
    "cell": {"type": "hive"},
    "params": {"graph": {"edges": [{"from": "./shout", "to": "./out"}]}},
}
OWN = """\
from colony.envelope import Emission


def shout(envelope, params):
    return Emission.say(envelope.body.last("user").text.upper())
"""


@pytest.fixture
def tree() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="up-", dir="/tmp"))
    _put(root / "main", HIVE)
    _put(root / "main" / "shout", CELL)
    _put(root / "main" / "out", {"cell": {"type": "sink"}})
    (root / "own.py").write_text(OWN)
    yield root
    shutil.rmtree(root)


async def test_up_runs_the_jobs_of_a_tree(tree: Path, redis_url: str) -> None:
    environment = {**os.environ, "COLONY_REDIS_URL": redis_url, "COLONY_NAME": "upjobs"}

    up = await _run(environment, "up", str(tree), "--api", "127.0.0.1:0", "--format", "json")
    assert up.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert json.loads(await up.stdout.readline())["problems"] == []
            send = await _run(environment, "send", "/shout", "hello", "--wait", "50")
            answer, _ = await send.communicate()
            status = await _run(environment, "status")
            screen, _ = await status.communicate()
    finally:
        up.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            rest, _ = await up.communicate()

    assert b"HELLO" in answer, rest.decode()
    assert b"jobs  1 process on the queue colony-upjobs" in screen
    assert up.returncode == 0


def _put(folder: Path, config: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


async def _run(environment: dict[str, str], *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "colony.cli", *arguments),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
