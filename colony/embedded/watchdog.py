"""The watchdog: the process that ties a Redis server to the life of the process that asked for it.

Run as a script with nothing but the standard library, so that it starts in a few milliseconds and
stays small. Its standard input is both the order (one JSON line) and the lifeline: `stop` asks for
a clean end, end of file means that the owner is gone. It answers with one JSON line.

The lock on the data directory belongs to this process and to the server, never to the owner: so it
is free exactly when the last writer of the directory is gone. A second line of defence watches the
owner's process itself, because a child the owner forked may hold the lifeline open after its death.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import IO, NoReturn, TypedDict

LOCK_FILE = "lock"
CLEAN_FILE = "clean"
# A previous server may still be writing its last lines when the next one is asked for.
LOCK_PATIENCE_S = 10.0
STOP_PATIENCE_S = 30.0
OWNER_CHECK_S = 0.5
PR_SET_PDEATHSIG = 1

# What each ended server ended with: the system tells it once.
_statuses: dict[int, int] = {}


class Order(TypedDict):
    """What the owner asks for: `config` is the server's, `data` the directory it writes to."""

    binary: str
    config: str
    data: str
    owner: int


class Answer(TypedDict, total=False):
    """Either `pid` and `unclean`, or `held_by`, the owner of the server that has the directory."""

    pid: int
    unclean: bool
    held_by: int


def main() -> int:
    """Run one server until it ends, its owner ends, or a clean end is asked for."""
    order: Order = json.loads(sys.stdin.buffer.readline())
    os.chdir(order["data"])
    lock = open(LOCK_FILE, "a+", encoding="ascii")
    if not _take(lock, order["owner"]):
        _answer({"held_by": _holder(lock)})
        return 1
    _sign(lock, order["owner"])
    # A first start has nothing that could be torn.
    unclean = os.path.isdir("appendonlydir") and not os.path.exists(CLEAN_FILE)
    _unmark()
    server = _spawn(order, lock.fileno())
    _answer({"pid": server, "unclean": unclean})
    asked = _watch(server, order["owner"])
    status = _end(server)
    if asked and status == 0:
        _mark()
    return status


def _take(lock: IO[str], owner: int) -> bool:
    """Whether the directory is ours.

    A server that somebody else still wants is refused at once. One whose owner is gone, or is our
    own, is about to end (a rewrite of the log outlives a killed server for a moment): worth a wait.
    """
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(lock)
            if (holder != owner and _lives(holder)) or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _holder(lock: IO[str]) -> int:
    lock.seek(0)
    return int(lock.read() or 0)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process > 0


def _sign(lock: IO[str], owner: int) -> None:
    lock.truncate(0)
    lock.write(str(owner))
    lock.flush()


def _spawn(order: Order, lock: int) -> int:
    """Start the server with its configuration on standard input; it dies with this process.

    A plain fork is safe here, and the death signal reliable: this process has one thread.
    """
    config, write = os.pipe()
    os.write(write, order["config"].encode())
    os.close(write)
    watchdog = os.getpid()
    process = os.fork()
    if process:
        os.close(config)
        return process
    _become(order["binary"], config, lock, watchdog)


def _become(binary: str, config: int, lock: int, watchdog: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == watchdog:
            os.dup2(config, 0)
            os.dup2(2, 1)
            os.set_inheritable(lock, True)
            os.execv(binary, [binary, "-"])
    except OSError as error:
        print(f"{binary}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _watch(server: int, owner: int) -> bool:
    """Return when there is a reason to end: True where a clean end was asked for."""
    changed, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    # Asked before each wait, so that an end before the handler was set is seen; a server that is
    # merely stopped wakes us too.
    while not _ended(server) and os.getppid() == owner:
        ready, _, _ = select.select([0, changed], [], [], OWNER_CHECK_S)
        if 0 in ready:
            return os.read(0, 16).startswith(b"stop")
        if changed in ready:
            os.read(changed, 512)
    return False


def _end(server: int) -> int:
    """Ask the server to write what it has and end, kill it where it does not; its exit status."""
    deadline = time.monotonic() + STOP_PATIENCE_S
    if not _ended(server):
        os.kill(server, signal.SIGTERM)
    while not _ended(server):
        if time.monotonic() > deadline:
            os.kill(server, signal.SIGKILL)
        time.sleep(0.01)
    return _statuses[server]


def _ended(server: int) -> bool:
    if server not in _statuses:
        process, status = os.waitpid(server, os.WNOHANG)
        if process:
            _statuses[server] = os.waitstatus_to_exitcode(status)
    return server in _statuses


def _mark() -> None:
    """Say in the directory that the server ended cleanly: its log is whole."""
    with open(CLEAN_FILE, "w", encoding="ascii") as mark:
        os.fsync(mark.fileno())
    _sync_directory()


def _unmark() -> None:
    """Take the mark away, durably, before the server can write: a power cut must not leave it."""
    if os.path.exists(CLEAN_FILE):
        os.unlink(CLEAN_FILE)
        _sync_directory()


def _sync_directory() -> None:
    directory = os.open(".", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _answer(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
