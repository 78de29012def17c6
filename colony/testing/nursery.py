"""The nursery: where role processes come from, in a few milliseconds each.

A process that has imported everything forks one for each role. Whatever comes from it is gone when
its context is left, and also when its owner is killed.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from colony.testing.nursery_process import Order

ROLES: Final = ("colony.cli.roles", "colony.up", "colony.roles", "colony.api.server")


class Nursery:
    """One warm process. Use as a context manager; many fleets may share one."""

    def __init__(self) -> None:
        cells = {cell.module for cell in entry_points(group="colony.cells")}
        program = "colony.testing.nursery_process"
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, *ROLES, *sorted(cells)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A Ctrl-C at the terminal is for whoever runs the test.
            start_new_session=True,
        )

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        prefix: Sequence[str] = (),
    ) -> int:
        """Run `colony` with these arguments, output to `log`; the process that runs it.

        With `prefix` that is another program, such as `ip netns exec NAME`, which runs the command
        line. Such a role is not forked but started like any other program.
        """
        pid = self._ask(
            {
                "arguments": [*arguments],
                "environment": {**environment},
                "log": str(log),
                "prefix": [*prefix],
            }
        )
        assert pid is not None, "a fork has a process"
        return pid

    def status(self, pid: int) -> int | None:
        """What a role ended with, the negated signal where one ended it; None while it runs."""
        return self._ask({"status": pid})

    def close(self) -> None:
        """Nothing that came from here runs afterwards. A repeat changes nothing."""
        self._process.communicate()

    def _ask(self, order: Order) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
