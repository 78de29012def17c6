"""Zygotes: warm Python processes that run each script in a fresh fork of themselves.

A script may be killed at any moment without harm to the worker, and starts in a few milliseconds
instead of the time an interpreter takes. `zygote_process.py` is what runs on the other side.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from colony.confinement.environment import plain_environment
from colony.confinement.limits import Limits
from workers.code.zygote_process import BEGUN, Job, Setup

PROGRAM = Path(__file__).with_name("zygote_process.py")

# Stdout and stderr of a script are files: an endless print ends here.
LIMITS = Limits(file_bytes=64 * 1024**2)
PATIENCE_S = 5.0
DYING_S = 1.0


@dataclass(frozen=True, slots=True)
class Script:
    """A program text; `file` is where it lies, if it has a file of its own."""

    text: str
    directory: Path
    file: Path | None = None

    def as_job(self) -> Job:
        """The script as a zygote is told of it: as `python3 FILE` or `python3 -c TEXT` sees it."""
        return Job(
            text=self.text,
            filename=str(self.file or "<string>"),
            argv=[str(self.file) if self.file else "-c"],
            first_import=str(self.file.parent) if self.file else "",
            directory=str(self.directory),
            # The root is where a program stands that has no folder, and no place to write to.
            home=tempfile.gettempdir() if self.directory == Path("/") else str(self.directory),
            limits=LIMITS._asdict(),
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """How a script ended; a negative exit code is the signal that ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    confinement: str


class Zygote:
    """One warm process. `preload` are modules it imports once, before its first fork; `way` is for
    who will not have the best confinement there is."""

    def __init__(self, preload: tuple[str, ...] = (), *, way: str | None = None) -> None:
        self.preload = preload
        self.way = way
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """The process runs afterwards, a new one if the last one died."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._orders, theirs = socket.socketpair()
        self._orders.setblocking(False)
        path = [entry for entry in sys.path if entry]
        setup = Setup(path=path, preload=list(self.preload), way=self.way)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), json.dumps(setup)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=plain_environment(os.environ),
                # A Ctrl-C at the terminal is for the worker, which still has work to drain.
                start_new_session=True,
            )

    def close(self) -> None:
        """The process and every script it runs are gone afterwards."""
        if self._orders is not None:
            self._orders.close()
        if self._process is not None:
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._orders = self._process = None

    async def run(self, script: Script, stdin: bytes) -> Finished:
        """Run `script` to its end. Raises OSError where it cannot be run or its zygote dies.

        Nothing it started is left afterwards, or a moment after a cancellation.
        """
        self.start()
        job = json.dumps(script.as_job()).encode()
        files = [_memory_file(content) for content in (job, stdin, b"", b"")]
        try:
            exit_code, way = await self._end_of(files)
            return Finished(exit_code, _content(files[2]), _content(files[3]), way)
        finally:
            for file in files:
                os.close(file)

    async def _end_of(self, files: list[int]) -> tuple[int, str]:
        answer = await self._ask(files)
        if not answer and await self._died():
            # It was dying when it was asked: the script has not begun, so another may be asked.
            for file in files:
                os.lseek(file, 0, os.SEEK_SET)
            self.start()
            answer = await self._ask(files)
        if answer in (b"", BEGUN):
            raise ConnectionResetError("the process that runs scripts died")
        exit_code, way = answer.removeprefix(BEGUN).decode().split()
        return int(exit_code), way

    async def _ask(self, files: list[int]) -> bytes:
        """What the process tells of a job: that it has begun, then how it ended."""
        line, theirs = socket.socketpair()
        # Closing the line is what kills a script nobody waits for.
        with line:
            line.setblocking(False)
            with theirs:
                self._send([*files, theirs.fileno()])
            told = b""
            loop = asyncio.get_running_loop()
            while told in (b"", BEGUN) and (heard := await loop.sock_recv(line, 64)):
                told += heard
            return told

    async def _died(self) -> bool:
        """Whether the process is at its end; one that could only not fork goes on."""
        assert self._process is not None
        try:
            await asyncio.to_thread(self._process.wait, DYING_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _send(self, descriptors: list[int]) -> None:
        assert self._orders is not None
        try:
            socket.send_fds(self._orders, [b"!"], descriptors)
        except BrokenPipeError:
            # It died since it was last asked, and has not seen this order.
            self.close()
            self.start()
            socket.send_fds(self._orders, [b"!"], descriptors)


_shared: dict[tuple[str, ...], Zygote] = {}
_borrowers: dict[tuple[str, ...], int] = {}


async def borrow(preload: tuple[str, ...] = ()) -> Zygote:
    """The one zygote of this process with these modules, warm; give it back once."""
    zygote = _shared.setdefault(preload, Zygote(preload))
    _borrowers[preload] = _borrowers.get(preload, 0) + 1
    # The first script answers when the imports are done, so no message waits for them.
    try:
        await zygote.run(Script("", Path("/")), b"")
    except BaseException:
        give_back(zygote)
        raise
    return zygote


def give_back(zygote: Zygote) -> None:
    """The zygote is closed when its last borrower gives it back."""
    _borrowers[zygote.preload] -= 1
    if not _borrowers[zygote.preload]:
        del _borrowers[zygote.preload], _shared[zygote.preload]
        zygote.close()


def _memory_file(content: bytes) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("colony")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    while content:
        content = content[os.write(file, content) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _content(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb", closefd=False) as reader:
        return reader.read()
