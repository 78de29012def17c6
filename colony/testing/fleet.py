"""A fleet: the role processes of one colony, and everything a test may do to one of them.

Each is what `colony router`, `worker` or `api` is on any host: started by the command line, with an
environment of its own, known by its process id.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from pydantic import JsonValue

from colony import faults
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.claims import block_until, comes_true
from colony.testing.nursery import Nursery
from colony.topology.load import load

PATIENCE_S: Final = 30.0

Role = Literal["router", "worker", "jobs", "api"]


@dataclass(frozen=True, eq=False)
class Process:
    """One role process. `pid` is the process that runs it, also where a prefix started it."""

    role: Role
    pid: int
    path: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    prefix: tuple[str, ...]
    _nursery: Nursery

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.path.read_text() if self.path.exists() else ""

    def events(self, name: str) -> list[dict[str, JsonValue]]:
        """The log lines of one event, each with its fields."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    @property
    def address(self) -> str:
        """Where an API listens."""
        return str(self.events("listening")[0]["address"])

    @property
    def status(self) -> int | None:
        """What it ended with, the negated signal where one ended it; None while it runs."""
        return self._nursery.status(self.pid)

    @property
    def running(self) -> bool:
        """Whether it has not ended; a frozen one has not."""
        return self.status is None

    @property
    def frozen(self) -> bool:
        """Whether it stands still, by SIGSTOP."""
        return self.running and _state(self.pid) == "T"

    def freeze(self) -> None:
        """Send SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens to one that has ended."""
        # Only whoever reaps it can give its number to another process: asked first, nothing does.
        if self.running:
            os.kill(self.pid, number)

    async def serving(self, *, timeout_s: float = PATIENCE_S) -> Self:
        """Returns when it has said that it serves; raises AssertionError where it does not."""
        said = "listening" if self.role == "api" else "serving"
        await self._until(lambda: bool(self.events(said)), f"say {said!r}", timeout_s)
        return self

    async def ended(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Its exit status, once it has ended; raises AssertionError where it does not."""
        if not await comes_true(lambda: not self.running, patience_s=timeout_s):
            raise AssertionError(f"{self.role} {self.pid} does not end:\n{self.log}")
        status = self.status
        assert status is not None
        return status

    async def stands_still(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Returns when it is frozen; raises AssertionError where it is not, or has ended."""
        await self._until(lambda: self.frozen, "stand still", timeout_s)

    async def _until(self, claim: Callable[[], bool], what: str, timeout_s: float) -> None:
        await comes_true(lambda: claim() or not self.running, patience_s=timeout_s)
        if not claim():
            raise AssertionError(f"{self.role} {self.pid} does not {what}:\n{self.log}")


class Fleet:
    """The role processes of the colony `name` on the server at `url`. Use as a context manager.

    `environment` is that of every process, beside what is not of colony in that of the test.
    """

    def __init__(
        self,
        nursery: Nursery,
        url: str,
        name: str = "colony",
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.keys = Keys(name)
        self.processes: list[Process] = []
        self._nursery = nursery
        self._logs = Path(tempfile.mkdtemp(prefix="colony-fleet-"))
        self._environment = {
            **_foreign(),
            "COLONY_NAME": name,
            "COLONY_REDIS_URL": url,
            "COLONY_LOG_FORMAT": "json",
            **(environment or {}),
        }

    async def publish(self, tree: Path) -> None:
        """The newest topology is that of the tree at `tree`."""
        link = Link(self.url)
        try:
            await Publication(link, self.keys).publish(load(tree, environment={}).publishable())
        finally:
            await link.close()

    def router(
        self,
        *arguments: str,
        armed: str = "",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Start a router; `armed` are the faults it starts with, in the words of `faults.arm`."""
        return self._start("router", arguments, armed, environment, prefix)

    def worker(
        self,
        *arguments: str,
        armed: str = "",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Start a worker, with arguments such as `--cells GLOB` and `--root TREE`."""
        return self._start("worker", arguments, armed, environment, prefix)

    def jobs(
        self,
        *arguments: str,
        armed: str = "",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Start processes that take jobs, with arguments such as `--processes N`."""
        return self._start("jobs", arguments, armed, environment, prefix)

    def api(
        self,
        *arguments: str,
        armed: str = "",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Start an API, on a free loopback port unless the arguments say otherwise."""
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        return self._start("api", (*listen, *arguments), armed, environment, prefix)

    def again(self, process: Process) -> Process:
        """Start a process like `process`, without its faults."""
        environment = {**process.environment, faults.VARIABLE: ""}
        return self._run(process.role, process.arguments, environment, process.prefix)

    def close(self) -> None:
        """Every process is gone, killed, and its log removed. A repeat changes nothing."""
        for process in self.processes:
            process.kill()
        block_until(lambda: not any(process.running for process in self.processes), "all end")
        shutil.rmtree(self._logs, ignore_errors=True)

    def _start(
        self,
        role: Role,
        arguments: Sequence[str],
        armed: str,
        environment: Mapping[str, str] | None,
        prefix: Sequence[str],
    ) -> Process:
        own = {**self._environment, faults.VARIABLE: armed, **(environment or {})}
        return self._run(role, arguments, own, prefix)

    def _run(
        self,
        role: Role,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        prefix: Sequence[str],
    ) -> Process:
        log = self._logs / f"{role}-{len(self.processes)}.log"
        command = (role, *arguments)
        pid = self._nursery.start(command, environment=environment, log=log, prefix=prefix)
        process = Process(
            role, pid, log, tuple(arguments), environment, tuple(prefix), self._nursery
        )
        self.processes.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _foreign() -> dict[str, str]:
    """The environment without settings of whoever runs the tests."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("COLONY_", "OPENAI_"))}


def _state(pid: int) -> str:
    # The name before it is in parentheses and may hold anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
