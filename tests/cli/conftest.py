"""A colony that runs under `colony up`, and a way to call the command."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from colony.cli import main

PATIENCE_S = 60

HANDLERS = """
import asyncio

from colony.envelope import Emission


def greet(envelope, params):
    return Emission.say("hello " + envelope.body.last("user").text, route="done")


async def linger(envelope, params):
    await asyncio.sleep(600)
"""

ROUTES = {"hop": {"route": {"type": "string", "values": ["done"]}}}
CONTRACT = {"version": "1", "settings": {}, "consumes": {}, "emits": ROUTES}

EDGES = [
    {"from": "./greet", "to": "./out", "condition": "hop.route == 'done'"},
    {"from": "./slow", "to": "./out"},
]


def write_tree(root: Path) -> Path:
    """`/greet` answers over `/out`, `/slow` never answers."""
    configs: dict[str, dict[str, Any]] = {
        "main": {"cell": {"type": "hive"}, "params": {"graph": {"edges": EDGES}}},
        "main/greet": {
            "cell": {"type": "code"},
            "params": {"handler": "cli_handlers:greet"},
            "contract": CONTRACT,
        },
        "main/slow": {"cell": {"type": "code"}, "params": {"handler": "cli_handlers:linger"}},
        "main/out": {"cell": {"type": "sink"}},
    }
    for place, config in configs.items():
        (root / place).mkdir(parents=True)
        (root / place / "config.json").write_text(json.dumps(config))
    (root / "cli_handlers.py").write_text(HANDLERS)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    yield write_tree(tmp_path / "tree")
    # The doctor imports it into this process; other trees have one of the same name.
    sys.modules.pop("cli_handlers", None)


class Process:
    """A `colony` that runs for some time."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "colony.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**clean_environment(), **env},
        )

    def line(self) -> str:
        """The next line it prints; fails with what it complained of where it ended instead."""
        assert self.popen.stdout
        line = self.popen.stdout.readline()
        if not line:
            pytest.fail(f"it ended: {self.popen.communicate(timeout=PATIENCE_S)[1]}")
        return line

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, and wait; the exit status and what was complained of."""
        self.popen.send_signal(number)
        _, complaint = self.popen.communicate(timeout=PATIENCE_S)
        return self.popen.returncode, complaint

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.end()
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe:
                pipe.close()


def clean_environment() -> dict[str, str]:
    """The environment without settings of whoever runs the tests."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("COLONY_", "OPENAI_"))}


@dataclass(frozen=True)
class Colony:
    """Calls `colony` in this process, with these settings in the environment."""

    env: dict[str, str]

    def __call__(self, *arguments: str, status: int = 0, input: str | None = None) -> Result:
        """What a command printed; fails unless it ended with `status`."""
        unset = dict.fromkeys(os.environ.keys() - clean_environment().keys())
        result = CliRunner().invoke(main, arguments, env={**unset, **self.env}, input=input)
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: str, status: int = 0) -> Any:
        """The JSON document a command printed."""
        return json.loads(self(*arguments, "--format", "json", status=status).stdout)


@pytest.fixture
def colony(redis_url: str, tmp_path: Path) -> Colony:
    """The command, on an empty server that nobody works on."""
    return Colony({"COLONY_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path)})


@pytest.fixture(scope="module")
def up() -> Iterator[Colony]:
    """The command, beside a colony that runs under `colony up`."""
    # Not where tests usually keep files: those paths are too long for a socket.
    with tempfile.TemporaryDirectory(prefix="colony-cli-") as folder:
        # `/slow` is in hand at the end, and never done.
        env = {"COLONY_DATA": f"{folder}/data", "COLONY_DRAIN_S": "0.1"}
        root = write_tree(Path(folder) / "tree")
        arguments = ("up", str(root), "--api", "127.0.0.1:0", "--format", "json")
        with Process(*arguments, env=env) as process:
            ready = json.loads(process.line())
            assert ready["problems"] == []
            yield Colony({**env, "API": ready["api"]})


@pytest.fixture
def run() -> type[Process]:
    """A `colony` that runs for some time; use as a context."""
    return Process


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="colony-cli-") as folder:
        yield Path(folder)
