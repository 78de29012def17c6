"""The reader: how a program reads one document on stdin, and says its title and its parts.

Documents of strangers are read that way: nesting and misplaced tags can cost an HTML5 parser
minutes and gigabytes, a PDF can do the same, and only a process can be limited and killed. Hence
this and what it runs import nothing of colony.
"""

import json
import resource
import sys
from collections.abc import Callable, Iterator

CPU_LIMIT_S = 10
MEMORY_LIMIT = 512 << 20
TEXT_LIMIT = 8 << 20

# What a program exits with that found a document locked by a password.
LOCKED = 3

# A title, then the parts of the text; None where one cannot be read.
Parts = Iterator[str | None]


class Locked(Exception):
    """A document cannot be read without a password."""


def read_stdin(read: Callable[[bytes], Parts]) -> None:
    """Write what `read` finds in stdin, within the limits: a line of JSON for each part.

    Each is written when it is there, so what was read before a limit is kept.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    room = TEXT_LIMIT
    try:
        for part in read(sys.stdin.buffer.read()):
            _write(part and part[:room])
            room -= len(part or "")
            if room < 0:
                return _write(None)
    except Locked:
        sys.exit(LOCKED)


def _write(part: str | None) -> None:
    # Half a pair of surrogates is no character, and no JSON reader has to take one.
    clean = part and part.encode(errors="replace").decode()
    print(json.dumps(clean), flush=True)
