"""Documents: files below a folder, named by `file:` URLs that say nothing about the machine.

`file:///bees/queen.md` is `bees/queen.md` below the folder, wherever the folder is on this host.
"""

import mimetypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from colony.errors import ConfigError, InvalidInput, NotFound, TargetBlocked

EXCERPT = 200


class Folder:
    """A folder whose files have URLs, and outside of which nothing has one."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @classmethod
    def at(cls, written: str, directory: Path | None) -> Self:
        """The folder that a param names, relative to the cell's own `directory`.

        Raises ConfigError where there is no such folder on this host.
        """
        path = Path(written)
        if not path.is_absolute():
            if directory is None:
                raise ConfigError(detail=f"{written!r} is relative and the cell has no folder here")
            path = directory / path
        if not path.is_dir():
            raise ConfigError(detail=f"{written!r} is not a folder on this host")
        return cls(path)

    def files(self) -> Iterator[Path]:
        """Every file of the folder and of those below it, by name. Hidden ones are left out, and so
        are links that lead outside or to a folder."""
        for directory, subdirectories, names in os.walk(self.root):
            subdirectories[:] = sorted(name for name in subdirectories if name[0] != ".")
            for name in sorted(names):
                path = Path(directory, name)
                if name[0] != "." and path.is_file() and self._contains(path.resolve()):
                    yield path

    def url(self, path: Path) -> str:
        """The URL of a file of this folder."""
        return "file:///" + quote(path.relative_to(self.root).as_posix())

    def find(self, url: str) -> Path:
        """The file that `url` names, links resolved: one of `files`.

        Raises InvalidInput, NotFound, or TargetBlocked where it lies outside of the folder.
        """
        host, relative = _parts(url)
        if host not in ("", "localhost"):
            raise InvalidInput(detail=f"a file URL has no host; write file:///{host}{relative}")
        written = Path(os.path.normpath(self.root / relative.lstrip("/")))
        try:
            path = written.resolve()
            if not self._contains(path) or not written.is_relative_to(self.root):
                raise TargetBlocked(target=url, detail="it is outside of the declared folder")
            if path.is_file() and self._lists(written):
                return path
        except (OSError, RuntimeError):
            pass  # Too long a name, or links in a circle: no file has such a URL.
        raise NotFound(what=f"file {url[:EXCERPT]}")

    def _lists(self, path: Path) -> bool:
        """Whether a file is one that `files` comes by."""
        parts = path.relative_to(self.root).parts
        folders = [*path.parents][: len(parts) - 1]
        hidden = any(part[0] == "." for part in parts)
        return not hidden and not any(folder.is_symlink() for folder in folders)

    def _contains(self, resolved: Path) -> bool:
        return resolved.is_relative_to(self.root)


def content_type(path: Path) -> str:
    """The MIME type that the name of `path` stands for."""
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _parts(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        relative = unquote(parts.path, errors="strict")
    except ValueError as error:
        raise InvalidInput(detail=f"{url!r} is not a file URL: {error}") from None
    if "\0" in relative:
        raise InvalidInput(detail=f"{url!r} is not a file URL: it has a null character")
    return parts.netloc, relative
