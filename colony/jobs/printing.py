"""Printing: the beginning of what a job prints goes where its job process prints."""

import os
import threading
import time
from contextlib import suppress
from typing import BinaryIO, Final

# So much of each stream is passed on.
KEPT_BYTES: Final = 1024**2
# Who prints more is read this slowly, so that the job process has time for its other duties.
_PAUSE_S: Final = 0.01
_CHUNK_BYTES: Final = 65_536
# How long the end of what was printed is waited for once nobody is left who prints.
_PATIENCE_S: Final = 1.0


class Relay:
    """Stands between the stream `number` of this process and that of one job.

    A file that this process prints to may be larger than a job may write one.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def become(self) -> None:
        """In the process of the job: its stream leads here."""
        os.dup2(self._writer, self._number)
        os.close(self._writer)
        os.close(self._reader)

    def start(self) -> None:
        """In this process, once the job has been forked: pass on what it prints."""
        os.close(self._writer)
        self._thread.start()

    def finish(self) -> None:
        """What was printed has been passed on."""
        self._thread.join(_PATIENCE_S)

    def _pass_on(self) -> None:
        left = KEPT_BYTES
        with open(self._reader, "rb", 0) as reader:
            while data := reader.read(_CHUNK_BYTES):
                if left > 0:
                    self._print(data[:left])
                else:
                    time.sleep(_PAUSE_S)
                left -= len(data)
        if left < 0:
            self._print(f"\n[{-left} bytes more were printed]\n".encode())

    def _print(self, data: bytes) -> None:
        with suppress(OSError), _stream(self._number) as stream:
            stream.write(data)


def _stream(number: int) -> BinaryIO:
    return open(number, "wb", closefd=False)
