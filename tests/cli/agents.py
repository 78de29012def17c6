"""A colony with an agent under `colony up`, and a `colony chat` in a terminal or a pipe."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.conftest import Colony, Process, clean_environment
from tests.colonies.agent_colony import ROOT, agent_tree

SOON_S = 30


@contextmanager
def agent_up(**handed: Any) -> Iterator[Colony]:
    """The command, beside an agent with these values for its template."""
    # Not where tests usually keep files: those paths are too long for a socket.
    with tempfile.TemporaryDirectory(prefix="colony-cli-") as folder:
        env = {
            "COLONY_DATA": f"{folder}/data",
            "COLONY_DRAIN_S": "0.1",
            "PYTHONPATH": str(ROOT),
        }
        tree = Path(folder) / "tree"
        agent_tree(tree, **handed)
        arguments = ("up", str(tree), "--api", "127.0.0.1:0", "--format", "json")
        with Process(*arguments, env=env) as process:
            ready = json.loads(process.line())
            assert ready["problems"] == []
            yield Colony({**env, "API": ready["api"]})


def piped(colony: Colony, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A chat whose lines come from a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "colony.cli", "chat", "assistant", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=SOON_S,
        env={**clean_environment(), **colony.env},
    )


class Terminal:
    """A chat in a terminal. Use it as a context."""

    def __init__(self, colony: Colony, *arguments: str) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            command = [sys.executable, "-m", "colony.cli", "chat", "assistant", *arguments]
            os.execve(command[0], command, {**clean_environment(), **colony.env})
        self.shown = ""

    def until(self, text: str) -> None:
        """Wait until it shows this, behind what it was last waited for."""
        deadline = time.monotonic() + SOON_S
        seen = ""
        while text not in seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} does not come behind {seen!r}"
            if select.select([self._terminal], [], [], left)[0]:
                seen += os.read(self._terminal, 4096).decode(errors="replace")
        self.shown += seen

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._terminal, f"{text}\n".encode())

    def press(self, key: bytes) -> None:
        """Press a key, such as Ctrl-C."""
        os.write(self._terminal, key)

    def left(self) -> int:
        """How it ended, once it has."""
        while True:
            try:
                if not os.read(self._terminal, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._terminal)
