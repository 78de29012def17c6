"""Folders of single calls: what a process that was killed has left of them is found and removed."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

# A folder is made before it is held, so a new one is nobody's for a moment.
_NEW_S = 60.0


def hold(folder: Path) -> int:
    """A descriptor: nobody takes the folder for abandoned until each process that has it is gone
    or has closed it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_abandoned(prefix: str) -> None:
    """The folders for temporary files with this prefix that nobody holds are gone, as far as this
    process may remove them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _NEW_S and _is_free(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
