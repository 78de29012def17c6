"""A running horse: the process of one job, as the job process that forked it sees it."""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from colony.confinement import kernel, supervision
from colony.confinement.folders import hold
from colony.confinement.limits import Limits
from colony.jobs.printing import Relay

# What the folders of horses are called that are abandoned when their job process is killed.
SCRATCH: Final = "colony-job-"
# After this time what was asked to end is killed without being asked.
INSIST_S: Final = 5.0


class RunningHorse:
    """Forked and confined, with a folder of its own; it ends when the process that forked it does.

    It is sent signals until it has ended and none afterwards. `why` says why it was ended from
    here, and is empty where it was not.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        """It runs `work`, and ends with an error where that returns."""
        self.why = ""
        self._ended = False
        # A signal may ask for its end while its end is being asked for.
        self._watching = threading.RLock()
        self._folder = tempfile.mkdtemp(prefix=SCRATCH)
        self._held = hold(Path(self._folder))
        self._relays = [Relay(number) for number in (1, 2)]
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(parent)
                work()
            finally:
                os._exit(1)
        for relay in self._relays:
            relay.start()

    def end(self, why: str) -> None:
        """End it and everything in it, if it still runs. Of several reasons the first is kept."""
        with self._watching:
            if self._ended:
                return
            self.why = self.why or why
            os.kill(self.pid, signal.SIGTERM)
        _later(INSIST_S, self._kill)

    def end_after(self, seconds: float, why: str) -> threading.Timer:
        """End it in so many seconds, unless the timer is cancelled."""
        return _later(seconds, lambda: self.end(why))

    def wait(self) -> None:
        """Returns when it has ended. Only then may it be reaped."""
        # It is a zombie until it is reaped, and no other process has its number so long.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._watching:
            self._ended = True

    def clear_up(self) -> None:
        """Its folder is gone, and what it printed has been passed on."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)
        for relay in self._relays:
            relay.finish()

    def _become(self, parent: int) -> None:
        for relay in self._relays:
            relay.become()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setpgrp()
        kernel.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        supervision.confine(Limits())
        tempfile.tempdir = self._folder

    def _kill(self) -> None:
        with self._watching:
            if not self._ended:
                os.kill(self.pid, signal.SIGKILL)


def _later(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer
