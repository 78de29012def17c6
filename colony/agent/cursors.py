"""Cursors: the place in the log of one session, as its client keeps it."""

import hashlib
import re
from typing import Final

from colony.errors import CursorMalformed

_CURSOR: Final = re.compile(r"(?P<entry>\d{1,15}-\d{1,10})@(?P<tag>[0-9a-f]{8})")


def cursor_of(session_id: str, entry_id: str) -> str:
    """The cursor behind an event of a session, which is of no use to any other session."""
    return f"{entry_id}@{_tag(session_id)}"


def entry_of(session_id: str, cursor: str) -> str:
    """The id of the event that a cursor stands behind.

    Raises CursorMalformed where it is none, or that of another session.
    """
    match = _CURSOR.fullmatch(cursor)
    if match is None or match["tag"] != _tag(session_id):
        raise CursorMalformed(cursor=cursor)
    return match["entry"]


def _tag(session_id: str) -> str:
    return hashlib.blake2b(session_id.encode(), digest_size=4).hexdigest()
