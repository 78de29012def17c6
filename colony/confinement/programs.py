"""Programs: a program is run to its end, confined, and what it wrote is kept up to a limit."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from colony.confinement.launch import Order
from colony.confinement.limits import Limits
from colony.confinement.output import Captured, captured

_LAUNCHER = Path(__file__).with_name("launch.py")

# How long the end of a program that is stopped, and the rest of what it wrote, is waited for.
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program, where it runs and with which variables. `way` is for who will not have the best
    confinement there is."""

    argv: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    limits: Limits
    way: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended; a negative exit code is the signal that ended it.

    One that was `overdue` was ended for that, and has no exit code; where it had not even begun, it
    has no confinement either.
    """

    exit_code: int | None
    stdout: Captured
    stderr: Captured
    confinement: str

    @property
    def overdue(self) -> bool:
        """Whether the program took longer than it had."""
        return self.exit_code is None


async def run(program: Program, *, timeout_s: float, keep_bytes: int) -> Finished:
    """Run `program` without input to its end and keep the first `keep_bytes` of each stream.

    Nothing it started is left afterwards, or a moment after a cancellation. Raises OSError where it
    cannot be run. What it writes beyond `keep_bytes` is counted, and read no faster than leaves the
    event loop time for others.
    """
    async with captured(keep_bytes) as stdout, captured(keep_bytes) as stderr:
        process, line = await _launched(stdout.write_end, stderr.write_end, program.environment)
        with line:
            way, exit_code = "", None
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    way = await _order(line, program)
                    exit_code = await process.wait()
            except TimeoutError:
                if not limit.expired():
                    raise
            finally:
                await _end(process)
        return Finished(exit_code, await stdout.rest(), await stderr.rest(), way)


async def _launched(
    stdout: BinaryIO, stderr: BinaryIO, environment: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    ours, theirs = socket.socketpair()
    try:
        with theirs, stdout, stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_LAUNCHER), str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
                # A Ctrl-C at the terminal is for the worker, which still has work to drain.
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


async def _order(line: socket.socket, program: Program) -> str:
    order = Order(
        argv=[*program.argv],
        directory=str(program.directory),
        limits=program.limits._asdict(),
        way=program.way,
        owner=os.getpid(),
    )
    line.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(line, json.dumps(order).encode())
    line.shutdown(socket.SHUT_WR)
    told = b""
    while heard := await loop.sock_recv(line, 4096):
        told += heard
    way, _, problem = told.decode().partition("!")
    if problem or not way:
        raise OSError(problem or "the launcher ended before the program began")
    return way


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _PATIENCE_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
