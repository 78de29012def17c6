"""What the cells of the job tests do: each act is a way to behave, named in the message."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.tool import tool

FOREVER_S = 1e9


def handle(envelope: Envelope, params: Mapping[str, Any]) -> Emission:
    """Do the act that the last user entry names."""
    return Emission.of(Entry.say("assistant", _do(_act(envelope))))


async def block(envelope: Envelope, params: Mapping[str, Any]) -> Emission:
    """An async handler that never lets the event loop run, and swallows whatever is raised."""
    _note(f"begun {os.getpid()}")
    while True:
        try:
            time.sleep(0.01)  # noqa: ASYNC251
        except BaseException:
            continue


@tool
def change(act: str) -> str:
    """Change something."""
    return _do(act)


@tool(read_only=True)
def look(act: str) -> str:
    """Look at something."""
    return _do(act)


def _act(envelope: Envelope) -> str:
    entry = envelope.body.last("user")
    return (entry.text if entry else None) or ""


def _do(act: str) -> str:
    word, _, more = act.partition(" ")
    _note(f"begun {word}")
    result = ACTS[word](more)
    _note(f"done {word}")
    return result


def _say(text: str) -> str:
    return f"{text} by {os.environ.get('RQ_WORKER_ID') and 'a job'}"


def _gate(name: str) -> str:
    """Wait until the test lets it go on."""
    gate = _journal().with_name(name)
    while not gate.exists():
        time.sleep(0.01)
    return "went on"


def _raise(text: str) -> str:
    raise RuntimeError(text)


def _exit(code: str) -> str:
    os._exit(int(code))


def _spin(_: str) -> str:
    while True:
        pass


def _print(_: str) -> str:
    while True:
        print("x" * 1000)


def _sleep(_: str) -> str:
    time.sleep(FOREVER_S)
    return "awake"


def _fault(_: str) -> str:
    ctypes.string_at(0)
    return "unhurt"


def _allocate(_: str) -> str:
    data = bytearray(2 * 1024**3)
    for page in range(0, len(data), 4096):
        data[page] = 1
    return "has it"


def _fork(_: str) -> str:
    """Every process makes as many more as it is let, 512 in all: unconfined, the bomb has to spare
    the machine that it is tried on."""
    _mark()
    for _generation in range(9):
        try:
            os.fork()
        except OSError:
            break
    time.sleep(FOREVER_S)
    return "awake"


def _grandchild(_: str) -> str:
    """Leave a process of another session behind, and go on for ever."""
    _leave()
    time.sleep(FOREVER_S)
    return "awake"


def _leave(_: str = "") -> str:
    code = "import os, time; os.setsid(); time.sleep(1e6)"
    subprocess.Popen([sys.executable, "-S", "-c", code, os.environ["JOB_MARK"]])
    return "left one"


def _mark() -> None:
    """What runs on is known by its arguments."""
    ctypes.CDLL(None).prctl(15, os.environ["JOB_MARK"].encode()[:15])


ACTS = {
    "say": _say,
    "gate": _gate,
    "raise": _raise,
    "exit": _exit,
    "spin": _spin,
    "print": _print,
    "sleep": _sleep,
    "segfault": _fault,
    "allocate": _allocate,
    "fork": _fork,
    "grandchild": _grandchild,
    "leave": _leave,
}


def _note(text: str) -> None:
    with _journal().open("a") as journal:
        journal.write(f"{text}\n")


def _journal() -> Path:
    return Path(os.environ["JOB_JOURNAL"])
