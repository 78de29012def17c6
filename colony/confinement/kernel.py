"""The system calls of Linux that confinement needs and that Python 3.11 does not name.

Where the system has none of them, asking gives False or raises OSError, as said for each.
"""

import ctypes
import os
import signal
import struct
from pathlib import Path

_NEW_MOUNTS = 0x00020000
_NEW_SHARED = 0x08000000  # memory, semaphores and queues of System V
_NEW_USERS = 0x10000000
_NEW_PIDS = 0x20000000

_MOUNT_PRIVATE = 0x00044000  # MS_REC | MS_PRIVATE
_MOUNT_PLAIN = 0x0000000E  # MS_NOSUID | MS_NODEV | MS_NOEXEC

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_KEEPCAPS = 1, 4, 8
_SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS, _CAP_AMBIENT = 36, 38, 47
_AMBIENT_RAISE = 2

# Chown, override and search past the permissions of files, act as the owner of a file.
_FILE_RIGHTS = 0b1111
_CAPABILITY_HEAD = struct.pack("=Ii", 0x20080522, 0)

_libc = ctypes.CDLL(None, use_errno=True)


def enter_namespaces() -> None:
    """The next child is process 1 of a namespace of its own: when it ends, all in it are killed,
    and the memory that they shared goes with them.

    Raises OSError where the kernel does not allow it; the process must not go on then.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _unshare(_NEW_PIDS | _NEW_MOUNTS | _NEW_SHARED)
        return
    _unshare(_NEW_USERS | _NEW_PIDS | _NEW_MOUNTS | _NEW_SHARED)
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(content)


def show_own_processes() -> None:
    """`/proc` shows the processes of this namespace, where the kernel lets it be mounted."""
    if _libc.mount(b"none", b"/", None, _MOUNT_PRIVATE, None) == 0:
        _libc.mount(b"proc", b"/proc", b"proc", _MOUNT_PLAIN, None)


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> bool:
    """Whether the kernel will send `by` to this process when its parent ends."""
    return _control(_SET_PDEATHSIG, by)


def adopt_orphans() -> bool:
    """Whether descendants of this process that lose their parent become its children."""
    return _control(_SET_CHILD_SUBREAPER, 1)


def give_up_privileges() -> None:
    """Neither this process nor any program it runs has a right beyond its user's, nor gains one."""
    _control(_SET_NO_NEW_PRIVS, 1)
    _set_capabilities(0)


def become(user: int) -> None:
    """The process runs as `user`, and of the rights of root it keeps those to files.

    Raises PermissionError where it may not change its user.
    """
    kept = _held_capabilities() & _FILE_RIGHTS
    _control(_SET_NO_NEW_PRIVS, 1)
    _control(_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _set_capabilities(kept)
    for number in range(kept.bit_length()):
        # Without this the programs that the process runs would lose what it keeps.
        _control(_CAP_AMBIENT, _AMBIENT_RAISE, number)
    # A change of user hides a process from itself in /proc.
    _control(_SET_DUMPABLE, 1)


def _unshare(flags: int) -> None:
    unshare = getattr(_libc, "unshare", None)
    if unshare is None or unshare(flags) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))


def _control(option: int, *values: int) -> bool:
    prctl = getattr(_libc, "prctl", None)
    if prctl is None:
        return False
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return bool(prctl(option, *padded) == 0)


def _held_capabilities() -> int:
    held = ctypes.create_string_buffer(24)
    capget = getattr(_libc, "capget", None)
    if capget is None or capget(_CAPABILITY_HEAD, held) != 0:
        return 0
    return int(struct.unpack("=6I", held.raw)[1])


def _set_capabilities(kept: int) -> None:
    capset = getattr(_libc, "capset", None)
    if capset is not None:
        # Effective, permitted, inheritable; once for each half of the 64.
        capset(_CAPABILITY_HEAD, struct.pack("=6I", kept, kept, kept, 0, 0, 0))
