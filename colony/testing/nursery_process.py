"""The nursery's own process: it has imported what roles need, and forks one for each order.

Its standard input is both the orders and the lifeline: each line is a JSON object, answered with
one line on standard output, and the end of it kills whatever still runs.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from typing import Final, NoReturn, TypedDict

from colony.topology.syntax import parse

PR_SET_PDEATHSIG: Final = 1
MODULE: Final = "colony.cli"


class Order(TypedDict, total=False):
    """Either a role to start, or `status`, the process whose end is asked for.

    A role with a `prefix` is another program, which runs the command line.
    """

    arguments: list[str]
    environment: dict[str, str]
    log: str
    prefix: list[str]
    status: int


# What each ended role ended with: the system tells it once.
_statuses: dict[int, int] = {}
_living: set[int] = set()


def main() -> None:
    """Fork roles until standard input ends; returns in none but the first process."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    # The first expression makes the parser, which takes longer than all that follow.
    parse("true")
    # What the collector looks at is copied in every fork.
    gc.freeze()
    nursery = os.getpid()
    while line := sys.stdin.buffer.readline():
        order: Order = json.loads(line)
        if "status" in order:
            _answer(_status(order["status"]))
            continue
        process = os.fork()
        if process == 0:
            _become(order, nursery)
        _living.add(process)
        _answer(process)
    for process in tuple(_living):
        if _status(process) is None:
            os.kill(process, signal.SIGKILL)


def _become(order: Order, nursery: int) -> NoReturn:
    """Be the role that is ordered, from its first line to its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery:
        os._exit(1)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, descriptor)
    environment = order["environment"]
    if order["prefix"]:
        command = [*order["prefix"], sys.executable, "-m", MODULE, *order["arguments"]]
        os.execvpe(command[0], command, environment)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[1:] = order["arguments"]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    sys.exit()


def _status(process: int) -> int | None:
    if process not in _statuses:
        ended, status = os.waitpid(process, os.WNOHANG)
        if not ended:
            return None
        _statuses[process] = os.waitstatus_to_exitcode(status)
        _living.discard(process)
    return _statuses[process]


def _answer(answer: int | None) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
