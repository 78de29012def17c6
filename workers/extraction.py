"""Extraction: the text of an HTML page or a PDF, taken in a process that does not outlive the call.

The process has limits of time, memory and output, none of the environment's secrets, and no more
than the document on its stdin.
"""

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass

from colony.errors import Unreadable
from workers.reader import LOCKED

# The tables that a PDF is found by are at its end, so of one that is cut nothing can be read.
PDF_LIMIT = 16 << 20

# The programs, as modules.
HTML, PDF = "workers.readable", "workers.pdf"

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_PDF = frozenset({"application/pdf", "application/x-pdf"})
_UNTYPED = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_SIGNATURE = b"%PDF-"
_SIGNATURE_WITHIN = 1024
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")
# Its processor time is limited; this is for a process that gets none.
_PATIENCE_S = 120


@dataclass(frozen=True)
class Extract:
    """What could be read of a document; not `whole` where a part was over a limit or broken."""

    title: str
    text: str
    whole: bool


def may_be_pdf(content_type: str) -> bool:
    """Whether a document of this type is a PDF, or has to be looked at to know."""
    return content_type in _PDF | _UNTYPED


def program_for(content_type: str, data: bytes) -> str | None:
    """The module that reads such a document; None for what is a text as it is."""
    if content_type in _HTML:
        return HTML
    untyped = content_type in _UNTYPED and _SIGNATURE in data[:_SIGNATURE_WITHIN]
    return PDF if content_type in _PDF or untyped else None


async def extract(data: bytes, program: str, charset: str | None) -> Extract:
    """What `program` reads in `data`; the process is killed where the call is cancelled.

    Raises Unreadable where it is nothing.
    """
    command, environment = _command(program, charset), _environment()
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
        )
    except OSError as error:
        raise _no_process(error) from error
    try:
        output, _ = await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _extract(output, process.returncode or 0)


def extract_blocking(data: bytes, program: str) -> Extract:
    """`extract` for a caller in a thread."""
    try:
        done = subprocess.run(
            _command(program, None),
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unreadable(detail="the document takes too long to read") from None
    except OSError as error:
        raise _no_process(error) from error
    return _extract(done.stdout, done.returncode)


def _no_process(error: OSError) -> Unreadable:
    return Unreadable(detail=f"no process could be started to read the document: {error.strerror}")


def _command(program: str, charset: str | None) -> list[str]:
    return [sys.executable, "-I", "-m", program, *filter(None, [charset])]


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def _extract(output: bytes, status: int) -> Extract:
    if status == LOCKED:
        raise Unreadable(detail="the document is encrypted, and no password is known here")
    # A process that was killed may have left half a line.
    title, *parts = [json.loads(line) for line in output.split(b"\n")[:-1]] or [None]
    read = [part for part in parts if part is not None]
    if not read and (status or parts):
        raise Unreadable(detail="the document is broken, or takes too long or too much memory")
    return Extract(title or "", "\n\n".join(read), status == 0 and len(read) == len(parts))
