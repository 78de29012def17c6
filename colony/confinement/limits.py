"""Limits: how much a confined process may use, and as which user it is counted."""

import os
import resource
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from colony.confinement import kernel

# From here on, processes of one user are counted apart in each user namespace.
_COUNTED_APART = (5, 14)


class Limits(NamedTuple):
    """What one call may use: `memory_bytes`, `file_bytes` and `cpu_s` hold for each process of it.

    `memory_bytes` is address space, of which some runtimes reserve more than they use. Threads
    count as processes.
    """

    memory_bytes: int = 2 * 1024**3
    processes: int = 128
    file_bytes: int = 1024**3
    open_files: int = 1024
    cpu_s: int | None = None


def bind(limits: Limits, own_user: int | None, *, namespace: bool) -> None:
    """The process has these limits and no way to raise them, and no privilege.

    It becomes `own_user`, where one is given and allowed, because root is bound by no number of
    processes. `namespace` says whether the process is in namespaces of its own.
    """
    user = os.geteuid()
    processes = limits.processes
    if own_user is None and not (namespace and user != 0 and _kernel() >= _COUNTED_APART):
        processes += _tasks_of(user)
    for kind, wanted in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
    ):
        if wanted is not None:
            _lower(kind, wanted)
    if own_user is not None:
        with suppress(PermissionError):
            kernel.become(own_user)
            return
    kernel.give_up_privileges()


def spare_user() -> int | None:
    """A user for a descendant of root that no account is, and no other process has at this time.

    None where the process is not root, or where there is no room for one.
    """
    if os.geteuid() != 0:
        return None
    first, part = _spare_users()
    return first + os.getpid() % part if part else None


def _lower(kind: int, wanted: int) -> None:
    _, ceiling = resource.getrlimit(kind)
    limit = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
    resource.setrlimit(kind, (limit, limit))


@cache
def _spare_users() -> tuple[int, int]:
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return 0, 0
    first, _, length = max(
        (tuple(map(int, line.split())) for line in lines), key=lambda row: row[2]
    )
    # The middle of what there is: far from the accounts of a system, and from those of containers.
    return first + length // 4, length // 4


@cache
def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def _tasks_of(user: int) -> int:
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # A process may end while it is looked at.
            with suppress(OSError):
                if folder.stat().st_uid == user:
                    count += len(os.listdir(folder / "task"))
    return count
