"""Ranges: what is told of a part of something long, and where in it a text is found."""

import base64
import codecs
from collections.abc import Awaitable, Callable

from pydantic import JsonValue

from colony.errors import PatternNotFound
from workers.fence import Slice
from workers.file.wish import Wish
from workers.tool_call import Answer

# Reads at most so many bytes, from an offset on.
Read = Callable[[int, int], Awaitable[Slice]]

# So much is looked through at once.
_PIECE = 1 << 20

# No character of UTF-8 has more bytes.
_CHARACTER = 4


async def found(wish: Wish, read: Read) -> Wish:
    """The wish, to be read from where its `find` is; raises PatternNotFound where it is nowhere."""
    if wish.find is None:
        return wish
    pattern = wish.find.encode(errors="replace")
    offset, before = wish.offset, b""
    while True:
        piece = await read(offset, _PIECE)
        place = (before + piece.data).find(pattern)
        if place >= 0:
            return wish.model_copy(update={"offset": offset - len(before) + place})
        if not piece.data:
            raise PatternNotFound(path=wish.path)
        offset += len(piece.data)
        before = (before + piece.data)[1 - len(pattern) :] if len(pattern) > 1 else b""


async def from_character(wish: Wish, read: Read, *, limit: int) -> tuple[Wish, Slice]:
    """A range of UTF-8 that begins with the character `wish.offset` is in, and the wish for it."""
    before = min(wish.offset, _CHARACTER - 1)
    piece = await read(wish.offset - before, limit + before)
    data, start = piece.data, before
    while 0 < start < len(data) and data[start] & 0xC0 == 0x80:
        start -= 1
    begun = wish.model_copy(update={"offset": wish.offset - before + start})
    return begun, Slice(data[start:], piece.size)


def told(wish: Wish, piece: Slice, *, max_bytes: int) -> Answer:
    """A range of a file as text; one that ends before the file does says where to read on, and one
    that begins behind its end says so."""
    if wish.mode == "base64":
        text, end = base64.b64encode(piece.data).decode(), wish.offset + len(piece.data)
    else:
        text, end = _decoded(piece, wish.offset, max_bytes)
    hop: dict[str, JsonValue] = {"operation": "read", "bytes": piece.size}
    marks = []
    if wish.find is not None:
        hop["found_at"] = wish.offset
        marks.append(f"found at offset {wish.offset}")
    if end < piece.size:
        hop.update(truncated=True, next_offset=end)
        marks.append(f"read on at offset {end}")
    elif not piece.data and wish.offset:
        marks.append(f"offset {wish.offset} is behind the end")
    if marks and wish.mode == "text":
        cut = "truncated, " if end < piece.size else ""
        text += f"… [{'; '.join([f'{cut}{piece.size} bytes total', *marks])}]"
    return Answer(text, hop)


def _decoded(piece: Slice, offset: int, max_bytes: int) -> tuple[str, int]:
    """The text that is read from `offset` on, of at most `max_bytes`, and where it ends."""
    data = piece.data
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=offset + len(data) >= piece.size)
    # The first bytes of a character that the limit cuts in two belong to the next range.
    cut = len(decoder.getstate()[0])
    if cut == len(data):
        cut, text = 0, data.decode(errors="replace")
    if len(text.encode()) > max_bytes:
        # What is no text grows when it is shown as one: a byte to three at most.
        return _decoded(Slice(data[: max(max_bytes // 3, 1)], piece.size), offset, max_bytes)
    return text, offset + len(data) - cut
