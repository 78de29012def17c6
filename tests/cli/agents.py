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
from subprocess import CompletedProcess
from typing import IO, Any

from tests.cli.conftest import Colony, Process, clean_environment
from tests.colonies.agent_colony import ROOT, agent_tree, calls, says

SOON_S = 30
# What an agent says that asks before its change.
ASKING: Any = [{"text": "I would change it.", **calls("change")}, says("Done.")]


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


def piped(colony: Colony, said: str | IO[str], *arguments: str) -> CompletedProcess[str]:
    """A chat whose lines come from a pipe, or from a file."""
    given: Any = {"input": said} if isinstance(said, str) else {"stdin": said}
    return subprocess.run(
        [sys.executable, "-m", "colony.cli", "chat", "assistant", *arguments],
        **given,
        capture_output=True,
        text=True,
        timeout=SOON_S,
        env={**clean_environment(), **colony.env},
    )


def session_in(errors: str) -> str:
    """The session that a chat has told it is of."""
    return errors.split("session ")[1].split()[0]


def waiting(colony: Colony) -> str:
    """A session whose run waits for an answer."""
    return session_in(piped(colony, "Go.\n").stderr)


class Terminal:
    """A chat in a terminal. Use it as a context."""

    def __init__(self, colony: Colony, *arguments: str) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            command = [sys.executable, "-m", "colony.cli", "chat", "assistant", *arguments]
            os.execve(command[0], command, {**clean_environment(), **colony.env})
        self.shown = ""
        self._unseen = ""

    def until(self, text: str) -> None:
        """Wait until it shows this, behind what it was last waited for."""
        deadline = time.monotonic() + SOON_S
        while text not in self._unseen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} does not come behind {self._unseen!r}"
            if select.select([self._terminal], [], [], left)[0]:
                self._unseen += os.read(self._terminal, 4096).decode(errors="replace")
        # One read may bring what is waited for next as well.
        before, _, self._unseen = self._unseen.partition(text)
        self.shown += before + text

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
