"""Needs: what a process takes of its machine, as the kernel says."""

from pathlib import Path
from typing import Literal

# ESTABLISHED, as the kernel writes it.
_OPEN = "01"


def memory(pid: int, what: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int:
    """The bytes that a process has resident now, or has had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{what}:")]
    return int(line.split()[1]) * 1024


def connections(pid: int, port: int) -> int:
    """How many connections a process holds open to a port."""
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    found = [line.split() for line in lines]
    sockets = {f"socket:[{f[9]}]" for f in found if f[2].endswith(f":{port:04X}") and f[3] == _OPEN}
    return sum(str(fd.readlink()) in sockets for fd in Path(f"/proc/{pid}/fd").iterdir())
