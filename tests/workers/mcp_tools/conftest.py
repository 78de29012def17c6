"""The servers that have to be there before they can be started."""

import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.mcp_tools.servers import GROWING, PATIENCE_S, HttpServer

EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of npm's server-everything, installed once for a run of all tests."""
    shared = tmp_path_factory.getbasetemp().parent
    folder = shared / EVERYTHING.rpartition("/")[2]
    with (shared / "server-everything.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = folder / "node_modules" / ".bin" / "mcp-server-everything"
        if not program.exists():
            folder.mkdir(exist_ok=True)
            quiet = ("--no-audit", "--no-fund", "--loglevel=error")
            done = subprocess.run(
                ["npm", "install", "--prefix", str(folder), *quiet, EVERYTHING],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                # No program is missing: the registry does not answer, which is no fault of ours.
                pytest.skip(f"npm does not install {EVERYTHING}: {done.stderr[-300:]}")
    return program


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell has its tools when it has started, however slow the machine is."""
    monkeypatch.setattr("workers.mcp_tools.cell.START_S", PATIENCE_S)


@pytest.fixture
def everything_http(everything: Path) -> Iterator[HttpServer]:
    """The same server on a port of its own, not started yet."""
    server = HttpServer((str(everything), "streamableHttp"))
    yield server
    server.kill()


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """The source of the growing server."""
    path = tmp_path / "growing.py"
    path.write_text(GROWING)
    return path
