"""The zygote: the process that stands ready to fork one fresh interpreter per job.

Run as a program with nothing but the standard library. It never executes a job's code itself, so
every fork starts from the same clean interpreter and costs a few milliseconds.

Its standard input is a socket. One byte on it is one job and carries five descriptors: the job
(JSON), the job's stdin, the files that take its stdout and stderr, and the line on which the exit
code is told. Each job runs confined: nothing it started is left when its end is told. Whoever
closes the other end of that line kills the job with all it started; the end of standard input, or
of the process that started this one, kills them all. A line that closes before it says that its job
has begun belongs to a job that never ran.
"""

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NoReturn, TypedDict

DESCRIPTORS = 5
# What is told on a line once its job has been forked.
BEGUN = b"."
OWNER_CHECK_S = 1.0
FLUSH_FAILED = 120

# Loaded before the first fork because scripts ask for them; none keeps anything of a script.
WARM = (
    "re",
    "uuid",
    "datetime",
    "hashlib",
    "random",
    "math",
    "time",
    "collections",
    "urllib.parse",
)


class Setup(TypedDict):
    """What a zygote is started with: its import path, and what to import before the first fork.

    `way` is how it confines its jobs; at its best where that is None.
    """

    path: list[str]
    preload: list[str]
    way: str | None


class Job(TypedDict):
    """A script and where it runs. `first_import` is where it looks for modules first."""

    text: str
    filename: str
    argv: list[str]
    first_import: str
    directory: str
    home: str
    limits: dict[str, int | None]


def main() -> None:
    """Be a zygote until the process that started this one is gone."""
    setup: Setup = json.loads(sys.argv[1])
    sys.path[:] = setup["path"]
    # Tried before an import can start a thread.
    best = _supervision().strongest()
    for name in (*WARM, *setup["preload"]):
        # What cannot be imported is the job's failure: it tries again and says why.
        with suppress(Exception):
            importlib.import_module(name)
    Zygote(socket.socket(fileno=0), setup["way"] or best).serve()


class Zygote:
    """The loop: fork on a job, tell its exit code, kill what nobody waits for."""

    def __init__(self, orders: socket.socket, way: str) -> None:
        self.owner = os.getppid()
        self.way = way
        self.orders = orders
        self.lines: dict[int, socket.socket] = {}
        self.bell, self.clapper = socket.socketpair()
        self.bell.setblocking(False)
        self.clapper.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(orders, selectors.EVENT_READ, self._take)
        self.selector.register(self.bell, selectors.EVENT_READ, self._reap)
        # A signal rings the bell only where it has a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.clapper.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until standard input ends or the owner's process does."""
        gc.collect()
        gc.freeze()
        while self.orders.fileno() >= 0 and os.getppid() == self.owner:
            for key, _ in self.selector.select(OWNER_CHECK_S):
                action: Callable[[], None] = key.data
                action()
        for pid in self.lines:
            os.kill(pid, signal.SIGTERM)
        for pid in self.lines:
            os.waitpid(pid, 0)

    def _take(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self.orders, 1, DESCRIPTORS)
        if not data:
            self.selector.unregister(self.orders)
            self.orders.close()
            return
        order, *streams, last = descriptors
        with open(order, "rb") as file, socket.socket(fileno=last) as line:
            job: Job = json.load(file)
            compiled = _compiled(job["text"], job["filename"])
            with suppress(OSError):  # no fork to be had: the line closes, which says so
                parent, pid = os.getpid(), os.fork()
                if pid == 0:
                    _become(job, compiled, streams, self.way, parent)
                self._follow(pid, line.dup())
        for descriptor in streams:
            os.close(descriptor)

    def _follow(self, pid: int, line: socket.socket) -> None:
        with suppress(OSError):
            line.sendall(BEGUN)
        self.lines[pid] = line
        self.selector.register(line, selectors.EVENT_READ, lambda: self._abandon(pid, line))

    def _abandon(self, pid: int, line: socket.socket) -> None:
        # The job may have ended, and been told of, in the same turn of the loop.
        if self.lines.get(pid) is line:
            self.selector.unregister(line)
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        self.bell.recv(4096)
        for pid in list(self.lines):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._tell(self.lines.pop(pid), os.waitstatus_to_exitcode(status))

    def _tell(self, line: socket.socket, exit_code: int) -> None:
        with suppress(KeyError):
            self.selector.unregister(line)
        with suppress(OSError):
            line.sendall(f"{exit_code} {self.way}".encode())
        line.close()


@lru_cache(maxsize=128)
def _compiled(text: str, filename: str) -> types.CodeType | None:
    try:
        return compile(text, filename, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # compiled again in the fork, where the error belongs to the script


def _become(
    job: Job, compiled: types.CodeType | None, streams: list[int], way: str, parent: int
) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervision = _supervision()
        supervision.kernel.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        # A script must not reach the orders of this process or the lines of other jobs.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        supervision.confine(supervision.Limits(**job["limits"]), way)
        code = _run(job, compiled)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(job: Job, compiled: types.CodeType | None) -> int:
    _open_streams()
    os.chdir(job["directory"])
    os.environ["HOME"] = job["home"]
    sys.argv = job["argv"]
    sys.path.insert(0, job["first_import"])
    module = types.ModuleType("__main__")
    if job["argv"][0] != "-c":
        module.__file__ = job["filename"]
    sys.modules["__main__"] = module
    try:
        exec(compiled or compile(job["text"], job["filename"], "exec"), module.__dict__)
    except SystemExit as request:
        return _finish(_exit_code(request))
    except BaseException as error:
        # The first frame is ours; a script that runs by itself has none above its own.
        below = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(below), below)
        return _finish(1)
    return _finish(0)


def _open_streams() -> None:
    # As the interpreter opens them at its start, but on the job's files.
    for number, (name, mode, errors) in enumerate(
        (("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"))
    ):
        stream = open(number, mode, encoding="utf-8", errors=errors, newline="\n", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _exit_code(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    print(request.code, file=sys.stderr)
    return 1


def _finish(code: int) -> int:
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads a script started
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return FLUSH_FAILED
    return code


def _supervision() -> types.ModuleType:
    # Found on the path this process is told of, so not where imports usually stand.
    return importlib.import_module("colony.confinement.supervision")


if __name__ == "__main__":
    main()
