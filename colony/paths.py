"""Paths: how a written address becomes the absolute path of a cell."""

import re

from colony.errors import PathError

ROOT = "/"

_SEGMENT = re.compile(r"[^/:{}\s\x00-\x1f\ud800-\udfff]{1,120}")


def resolve(written: str, base: str) -> str:
    """The absolute path that `written` means to somebody at `base`.

    `base` acts as a directory: `./x` and `x` are below it, `../x` is beside it, `.` is `base`.
    Climbing above the root stays at the root; no input is an error (meclaw, paths).
    """
    whole = written if written.startswith(ROOT) else f"{base}/{written}"
    parts: list[str] = []
    for part in _parts(whole):
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return ROOT + "/".join(parts)


def parent(path: str) -> str:
    """The hive that `path` lies in; the root is its own parent."""
    return ROOT + "/".join(_parts(path)[:-1])


def within(path: str, scope: str) -> bool:
    """Whether `path` is `scope` or lies below it."""
    return scope == ROOT or path == scope or path.startswith(scope + "/")


def check_segment(segment: str) -> str:
    """`segment`, if it can be a part of a path; raises PathError otherwise.

    Colons and braces are refused because paths become part of Redis keys.
    """
    if segment in (".", "..") or not _SEGMENT.fullmatch(segment):
        raise PathError(path=segment, detail="1 to 120 characters, none of them / : { } or space")
    return segment


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
