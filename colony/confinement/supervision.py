"""Supervision: a process goes on as a confined one, and what it was stays behind to see it end.

Three processes stand in a row. The *caller* is the one that asked: it waits, and ends as the
confined one ends, so whoever waits for it learns that. Its child is the *keeper*, and the child of
that goes on as the *confined* process. In a PID namespace the keeper is process 1: the kernel kills
all that is in it when the keeper ends, and ends the keeper when the caller is killed. Where
namespaces are not allowed the keeper is a subreaper: whatever a descendant does, it comes to the
keeper when its parent ends, and the keeper kills until nobody is left.

Not held: as a subreaper's, a process that runs as the same user can kill the keeper and the caller.
"""

import os
import resource
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

from colony.confinement import kernel
from colony.confinement.limits import Limits, bind, spare_user

PID_NAMESPACE: Final = "pid_namespace"
SUBREAPER: Final = "subreaper"

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
_OTHERS = (signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1


@cache
def strongest() -> str:
    """The best way of confinement that the kernel allows this process, tried once.

    The trial is a fork: ask before the process has threads.
    """
    spare_user()  # reads what every fork would have to read
    trial = os.fork()
    if trial == 0:
        _try_namespaces()
    _, status = os.waitpid(trial, 0)
    return PID_NAMESPACE if status == 0 else SUBREAPER


def confine(limits: Limits, way: str | None = None) -> str:
    """Go on as a confined process; returns, in that process alone, the way it is confined.

    For a process that was just forked for this and has one thread. What it was before waits as the
    caller: it ends when nothing of the confined process is left, with the same exit code or by the
    same signal. SIGTERM to the caller ends everything first; SIGKILL of the caller ends everything
    soon after. Raises OSError where a namespace is refused although it was allowed before.
    """
    way = way or strongest()
    if way == PID_NAMESPACE:
        kernel.enter_namespaces()
    else:
        kernel.adopt_orphans()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # How the confined process ended, from the keeper; and the end of the caller, to the keeper.
    told, tell = os.pipe()
    held, hold = os.pipe()
    own_user = spare_user()
    keeper = os.fork()
    if keeper:
        _wait(keeper, told, {told, hold}, way)
    os.close(hold)
    _be_keeper(way, held)
    confined = _fork_or_end()
    if confined:
        _keep(confined, tell, {tell, held}, way)
    os.setsid()
    bind(limits, own_user, namespace=way == PID_NAMESPACE)
    kernel.die_with_parent()
    if way != PID_NAMESPACE and os.getppid() == 1:
        os._exit(1)  # the keeper ended before the line above
    for descriptor in (told, tell, held):
        os.close(descriptor)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return way


# The caller


def _wait(keeper: int, told: int, open_files: Collection[int], way: str) -> NoReturn:
    _stand_by(open_files)
    ending = signal.SIGKILL if way == PID_NAMESPACE else signal.SIGTERM
    stopped = False
    while os.waitpid(keeper, os.WNOHANG) == (0, 0):
        if signal.sigwait(_SIGNALS) == signal.SIGTERM:
            stopped = True
            os.kill(keeper, ending)
    if way != PID_NAMESPACE:
        kill_descendants()  # the keeper may have been killed by what it kept
    _end_as(_status(told, -signal.SIGTERM if stopped else -signal.SIGKILL))


def _status(told: int, otherwise: int) -> int:
    os.set_blocking(told, False)
    with suppress(BlockingIOError):
        return int(os.read(told, 16) or str(otherwise))
    return otherwise


def _end_as(status: int) -> NoReturn:
    if status < 0:
        with suppress(OSError):  # the disposition of SIGKILL cannot be set
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        os.kill(os.getpid(), -status)
    os._exit(abs(status))


# The keeper


def _be_keeper(way: str, held: int) -> None:
    if way == PID_NAMESPACE:
        kernel.die_with_parent()
        kernel.show_own_processes()
    else:
        os.setsid()  # a kill of the caller's group leaves the keeper to clean up
        kernel.adopt_orphans()
        kernel.die_with_parent(signal.SIGTERM)
    os.set_blocking(held, False)
    with suppress(BlockingIOError):
        os.read(held, 1)
        os._exit(1)  # the caller ended before this process could ask to be told


def _keep(confined: int, tell: int, open_files: Collection[int], way: str) -> NoReturn:
    _stand_by(open_files)
    status = None
    while status is None:
        status = _reap(confined)
        if status is None and signal.sigwait(_SIGNALS) == signal.SIGTERM and way != PID_NAMESPACE:
            break
    if status is None:
        with suppress(ProcessLookupError):
            os.killpg(confined, signal.SIGKILL)  # all there is to do where there is no /proc
    if way != PID_NAMESPACE:
        kill_descendants()
    if status is not None:
        os.write(tell, str(status).encode())
    os._exit(0)


def _fork_or_end() -> int:
    # An error here must not reach code that believes itself confined.
    try:
        return os.fork()
    except OSError:
        os._exit(1)


def _reap(awaited: int) -> int | None:
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == awaited:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def kill_descendants() -> None:
    """No process below this one is left; it must be a subreaper for that."""
    pause_s = _FIRST_PAUSE_S
    with suppress(ChildProcessError):
        while True:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            # Who is stopped starts nobody, so a second look misses no child of the first.
            for by in (signal.SIGSTOP, signal.SIGKILL):
                for pid in _descendants(os.getpid()):
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, by)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of the program comes first and may hold anything but a last parenthesis.
            fields = stat.read_bytes().rpartition(b")")[2].split()
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [*children.get(ancestor, ())]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


# Both


def _stand_by(open_files: Collection[int]) -> None:
    """Hold on to nothing that belongs to the confined process, and be disturbed by nothing."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in _OTHERS:
        # What the confined process does at a signal is not done here.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    lowest = 3
    for descriptor in (*sorted(open_files), os.sysconf("SC_OPEN_MAX")):
        os.closerange(lowest, descriptor)
        lowest = descriptor + 1


def _try_namespaces() -> NoReturn:
    try:
        kernel.enter_namespaces()
        inner = os.fork()
        if inner == 0:
            os._exit(0 if os.getpid() == 1 else 1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    except OSError:
        os._exit(1)
