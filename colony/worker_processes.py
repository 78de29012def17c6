"""Worker processes: workers beside the one in this process, and what takes their jobs.

Each is started again if it dies.
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Final, Literal

from colony.config import Config
from colony.log import get_logger

RESTART_S: Final = 1.0

log = get_logger("colony.worker_processes")


class WorkerProcesses:
    """`count` processes of a role that host the cells of the tree at `root`, or take their jobs.

    Each ends with this process, however that one ends.
    """

    def __init__(
        self,
        config: Config,
        url: str,
        root: Path | None,
        count: int,
        *,
        role: Literal["worker", "jobs"] = "worker",
    ) -> None:
        self._environment = _environment(config, url)
        tree = ("--root", str(root)) if root is not None else ()
        self._role = role
        self._command = ("-m", "colony.cli", role, "--with-parent", *tree)
        self._count = count
        self._running: set[Process] = set()
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """Keep the processes running until stopped, then wait for them to drain."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._count):
                group.create_task(self._keep_one())

    def stop(self) -> None:
        """Ask every process to drain and end."""
        self._stopping.set()
        for process in self._running:
            process.terminate()

    async def _keep_one(self) -> None:
        while not self._stopping.is_set():
            # A session of its own: Ctrl-C at the terminal is ours to pass on.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                stdin=PIPE,
                env=self._environment,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                status = await process.wait()
            finally:
                self._running.discard(process)
                if process.returncode is None:
                    process.kill()
            if not self._stopping.is_set():
                log.error(f"{self._role}_ended", pid=process.pid, status=status)
                await asyncio.sleep(RESTART_S)


def _environment(config: Config, url: str) -> dict[str, str]:
    """What a worker is told. An address may hold a password, so it is no argument."""
    ours = {
        "COLONY_NAME": config.name,
        "COLONY_REDIS_URL": url,
        "COLONY_LOG_LEVEL": config.log_level,
        "COLONY_LOG_FORMAT": config.log_format,
        "COLONY_DRAIN_S": str(config.drain_s),
        "COLONY_CLAIM_IDLE_S": str(config.claim_idle_s),
    }
    if config.rq is not None:
        ours["COLONY_RQ_URL"] = config.rq
    hidden = (
        "COLONY_REDIS_URL_FILE",
        "COLONY_RQ_URL_FILE",
        "COLONY_API_TOKEN",
        "COLONY_API_TOKEN_FILE",
        "COLONY_API_TOKENS_FILE",
        "COLONY_CONFIG",
    )
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, **ours}
