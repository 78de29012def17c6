"""The fence: the files below one folder, and nothing outside of it, whatever links say.

A path is resolved first and then opened part by part without following a link, so a link that is
put in its way between the two leads nowhere.
"""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from colony.errors import (
    ConfigError,
    InvalidInput,
    NotADirectory,
    NotAFile,
    NotFound,
    OutsideBoundary,
    ToolError,
    Unreadable,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe or a device must neither wait nor act.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# What the system takes as a path; resolving a longer one takes the longer, and comes to nothing.
LONGEST_PATH: Final = 4096
# What can be asked of the system as a place in a file.
LAST_OFFSET: Final = 2**62

# Whoever else locks a folder must not hold a thread of ours for ever.
LOCK_S: Final = 10.0
_TRY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of bytes of something that has `size` of them."""

    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A name in a folder; `kind` is file, directory, link or other, `size` that of a file."""

    name: str
    kind: str
    size: int
    modified_s: float


class Fence:
    """The files below a folder, named by paths relative to it or absolute ones inside of it."""

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()

    @classmethod
    def at(cls, written: str) -> Self:
        """The fence around a folder; raises ConfigError where it is not absolute or not there."""
        base = Path(written)
        if not base.is_absolute():
            raise ConfigError(detail=f"base_path {written!r} is not absolute")
        if not base.is_dir():
            raise ConfigError(detail=f"base_path {written!r} is not a folder on this host")
        return cls(base)

    def read(self, path: str, *, offset: int, limit: int) -> Slice:
        """At most `limit` bytes of a file from `offset` on."""
        with self._parent(path) as (folder, name), _file(folder, name, path) as file:
            data = os.pread(file, limit, min(offset, LAST_OFFSET))
            return Slice(data, os.fstat(file).st_size)

    def write(self, path: str, data: bytes) -> None:
        """The file holds `data`, whole or not at all; its folder must be there."""
        with self._parent(path) as (folder, name):
            _lock(folder, path)
            _replace(folder, name, path, data)

    def change(self, path: str, edit: Callable[[bytes], bytes], *, limit: int) -> None:
        """The file holds what `edit` makes of it; no other change of this host comes between.

        A file of more than `limit` bytes is refused.
        """
        with self._parent(path) as (folder, name):
            _lock(folder, path)
            with _file(folder, name, path) as file:
                size = os.fstat(file).st_size
                data = os.pread(file, limit + 1, 0) if size <= limit else b""
                # It may have grown meanwhile.
                if max(size, len(data)) > limit:
                    raise InvalidInput(detail=f"{path} has {size} bytes; {limit} can be edited")
            _replace(folder, name, path, edit(data))

    def entries(self, path: str) -> list[Listed]:
        """What a folder holds, by name."""
        with self._folder(path, self._parts(path)) as folder:
            names = sorted(os.listdir(folder))
            found = (_listed(folder, name) for name in names)
            return [listed for listed in found if listed is not None]

    def stat(self, path: str) -> Listed:
        """What a path names."""
        parts = self._parts(path)
        if not parts:
            return Listed(".", "directory", 0, self.base.stat().st_mtime)
        with self._folder(path, parts[:-1]) as folder:
            listed = _listed(folder, parts[-1])
        if listed is None:
            raise NotFound(what=f"file {path}")
        return listed

    def _parts(self, path: str) -> tuple[str, ...]:
        """The way from the folder to what `path` names, without links."""
        if not path or "\0" in path:
            raise InvalidInput(detail="a path is a text without null characters, and not empty")
        if len(path) > LONGEST_PATH:
            raise Unreadable(detail=f"a path has at most {LONGEST_PATH} characters")
        try:
            resolved = Path(os.path.realpath(self.base / path))
        except (OSError, ValueError, RecursionError) as error:  # A chain of a thousand links.
            raise Unreadable(detail=f"{path}: {error}") from error
        if not resolved.is_relative_to(self.base):
            raise OutsideBoundary(path=path)
        return resolved.relative_to(self.base).parts

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        parts = self._parts(path)
        if not parts:
            raise NotAFile(path=path)
        with self._folder(path, parts[:-1]) as folder:
            yield folder, parts[-1]

    @contextmanager
    def _folder(self, path: str, parts: tuple[str, ...]) -> Iterator[int]:
        with _told(path):
            folder = os.open(self.base, _FOLDER)
            try:
                for part in parts:
                    below = os.open(part, _FOLDER, dir_fd=folder)
                    os.close(folder)
                    folder = below
                yield folder
            finally:
                os.close(folder)


@contextmanager
def _file(folder: int, name: str, path: str) -> Iterator[int]:
    file = os.open(name, _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotAFile(path=path)
        yield file
    finally:
        os.close(file)


def _lock(folder: int, path: str) -> None:
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unreadable(detail=f"{path}: another program has locked its folder") from None
        time.sleep(_TRY_S)


def _replace(folder: int, name: str, path: str, data: bytes) -> None:
    before = _found(folder, name)
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise NotAFile(path=path)
    # A name of its own: that of the file may already be as long as a name can be.
    temporary = f".{secrets.token_hex(8)}.new"
    file = os.open(temporary, _NEW, 0o666, dir_fd=folder)
    try:
        with open(file, "wb") as writer:
            if before is not None:
                _resemble(file, before)
            writer.write(data)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _resemble(file: int, before: os.stat_result) -> None:
    """The owner where that can be given, and who may do what; never to run as its owner, which
    would lend somebody else's rights to what is written now."""
    with suppress(PermissionError):
        os.fchown(file, before.st_uid, before.st_gid)
    os.fchmod(file, before.st_mode & 0o777)


def _found(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _listed(folder: int, name: str) -> Listed | None:
    found = _found(folder, name)
    if found is None:
        return None  # Gone since the folder was read.
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((named for test, named in kinds if test(found.st_mode)), "other")
    return Listed(name, kind, found.st_size if kind == "file" else 0, found.st_mtime)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _meaning(path, error) from error


def _meaning(path: str, error: OSError) -> ToolError:
    match error.errno:
        case errno.ENOENT:
            return NotFound(what=f"file {path}")
        case errno.ENOTDIR:
            return NotADirectory(path=path)
        case errno.ELOOP:
            # Resolved a moment ago: somebody has put a link in the way since.
            return OutsideBoundary(path=path)
        case errno.EISDIR:
            return NotAFile(path=path)
        case _:
            return Unreadable(detail=f"{path}: {error.strerror}")
