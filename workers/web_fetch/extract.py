"""Extraction: the text of what was fetched, by its content type."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

from colony.errors import Unreadable
from workers import readable

_HTML = frozenset({"text/html", "application/xhtml+xml"})


async def text_of(data: bytes, content_type: str, charset: str | None) -> str:
    """The text that `data` is: the readable part of HTML, anything else decoded, lossy."""
    if content_type in _HTML:
        return await _readable(data, charset)
    return readable.decode(data, charset or "utf-8")


async def _readable(html: bytes, charset: str | None) -> str:
    """The title and text of a page, taken in a process that does not outlive this call."""
    command = [sys.executable, "-I", readable.__file__, *filter(None, [charset])]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        output, _ = await process.communicate(html)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise Unreadable(detail="the page takes too long or too much memory to read")
    title, text = json.loads(output)
    return f"{title}\n\n{text}" if title else str(text)
