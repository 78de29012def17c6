"""Lines: what somebody types, or a script sends, line by line and never blocking the loop."""

import asyncio
import os
import stat
import termios
from collections import deque
from typing import Final

CHUNK: Final = 64 * 1024


class Lines:
    """The lines of a file descriptor: a terminal, a pipe or a file. Use it as a context."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[str] = deque()
        self._begun = b""
        self._waiting: asyncio.Future[None] | None = None
        self.ended = False

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for a line."""
        return self._waiting is not None

    def __enter__(self) -> "Lines":
        if self._never_waits():
            while not self.ended:
                self._read()
        else:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)

    async def next(self) -> str | None:
        """The next line; None behind the last one, and where the wait was given up."""
        if not self._lines and not self.ended:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._lines.popleft() if self._lines else None

    def give_up(self) -> None:
        """Whoever waits for a line waits no longer."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def forget_typed(self) -> None:
        """What was typed in a terminal before now is no line; what a script sends stays."""
        if self.ended or not os.isatty(self._descriptor):
            return
        termios.tcflush(self._descriptor, termios.TCIFLUSH)
        self._lines.clear()
        self._begun = b""

    def _never_waits(self) -> bool:
        """Whether it is a file or nothing, which never make anybody wait; no loop can watch one."""
        mode = os.fstat(self._descriptor).st_mode
        null = os.stat(os.devnull)
        is_null = stat.S_ISCHR(mode) and os.fstat(self._descriptor).st_rdev == null.st_rdev
        return stat.S_ISREG(mode) or is_null

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, CHUNK)
        except OSError:
            # The terminal is gone. Left alone, it would call here for ever.
            data = b""
        *whole, self._begun = (self._begun + data).split(b"\n")
        if not data:
            self.ended = True
            asyncio.get_running_loop().remove_reader(self._descriptor)
            whole += [self._begun] if self._begun else []
        self._lines += [line.decode(errors="replace") for line in whole]
        if whole or self.ended:
            self.give_up()
