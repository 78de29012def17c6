"""The cell type `file`: reads, writes and lists the files below one folder.

A long result of the same question is read here as well, by its `blob:` handle.
"""

import asyncio
import base64
import binascii
import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import Field, JsonValue

from colony.cell import Cell, Host
from colony.envelope import Emission, Envelope
from colony.errors import InvalidInput, ToolError
from colony.results import is_handle
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.fence import Fence, Listed, Slice
from workers.file.wish import Wish
from workers.named_folders import absolute_folder
from workers.tool_call import Answer, answer


class File(Cell):
    """Do one operation on one path. Nothing outside of `base_path` can be named, by links neither.

    A write replaces a file whole or not at all.
    """

    class Params(Cell.Params):
        """`base_path` is absolute. With `read_only` nothing is written."""

        base_path: str
        read_only: bool = False
        max_bytes: int = Field(default=262_144, ge=4)
        max_concurrency: int = Field(default=8, ge=1)

    reads_ranges = True
    params: Params
    _fence: Fence

    @classmethod
    def declare(cls, params: Mapping[str, JsonValue]) -> ToolDeclaration:
        """A tool that changes files, unless the params say `read_only`."""
        read_only = params.get("read_only") is True
        verbs = "Read and list" if read_only else "Read, write and list"
        return ToolDeclaration(
            name="file",
            description=f"{verbs} files of one folder. Offsets and limits count bytes.",
            parameters=Wish.schema_of_tool(),
            read_only=read_only,
        )

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """A `base_path` that is not absolute, or not there."""
        return absolute_folder(spec, "base_path")

    async def start(self, host: Host) -> None:
        """The folder is there; raises ConfigError where it is not."""
        self._fence = Fence.at(self.params.base_path)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Answer one wish."""

        async def do(wish: Wish) -> Answer:
            try:
                return await self._do(wish, host)
            except ToolError as error:
                error.hop = {**error.hop, "operation": wish.op}
                raise

        return await answer(
            envelope, do, host=host, operation="file", arguments=Wish, timeout_ms=None
        )

    async def probe(self) -> str:
        """What the folder holds."""
        listed = await asyncio.to_thread(self._fence.entries, ".")
        return f"{self._fence.base} holds {len(listed)} names"

    async def _do(self, wish: Wish, host: Host) -> Answer:
        if wish.op == "write" and self.params.read_only:
            raise InvalidInput(detail="nothing is written here")
        if is_handle(wish.path):
            if wish.op != "read":
                raise InvalidInput(detail="a blob can only be read")
            data, size = await host.read_shelved(
                wish.path, offset=wish.offset, limit=self._limit(wish)
            )
            return _told(wish, Slice(data, size), self.params.max_bytes)
        match wish.op:
            case "read":
                found = await asyncio.to_thread(
                    self._fence.read, wish.path, offset=wish.offset, limit=self._limit(wish)
                )
                return _told(wish, found, self.params.max_bytes)
            case "write":
                data = _content(wish)
                await asyncio.to_thread(self._fence.write, wish.path, data)
                text = f"wrote {len(data)} bytes to {wish.path}"
                return Answer(text, {"operation": "write", "bytes": len(data)})
            case "list":
                listed = await asyncio.to_thread(self._fence.entries, wish.path)
                text = "\n".join(map(_line, listed))
                return Answer.capped(
                    text, max_bytes=self.params.max_bytes, operation="list", count=len(listed)
                )
            case "stat":
                text = _described(await asyncio.to_thread(self._fence.stat, wish.path))
                return Answer(text, {"operation": "stat"})

    def _limit(self, wish: Wish) -> int:
        # Four characters of base64 stand for three bytes.
        most = self.params.max_bytes * 3 // 4 if wish.mode == "base64" else self.params.max_bytes
        return min(most, wish.limit or most)


def _told(wish: Wish, found: Slice, max_bytes: int) -> Answer:
    """A range of a file as text; one that ends before the file does says where to read on."""
    if wish.mode == "base64":
        text, end = base64.b64encode(found.data).decode(), wish.offset + len(found.data)
    else:
        text, end = _decoded(found, wish.offset, max_bytes)
    hop: dict[str, JsonValue] = {"operation": "read", "bytes": found.size}
    if end >= found.size:
        return Answer(text, hop)
    if wish.mode == "text":
        text += f"… [truncated, {found.size} bytes total; read on at offset {end}]"
    return Answer(text, {**hop, "truncated": True, "next_offset": end})


def _decoded(found: Slice, offset: int, max_bytes: int) -> tuple[str, int]:
    """The text that is read from `offset` on, of at most `max_bytes`, and where it ends."""
    data = found.data
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=offset + len(data) >= found.size)
    # The first bytes of a character that the limit cuts in two belong to the next range.
    cut = len(decoder.getstate()[0])
    if cut == len(data):
        cut, text = 0, data.decode(errors="replace")
    if len(text.encode()) > max_bytes:
        # What is no text grows when it is shown as one: a byte to three at most.
        return _decoded(Slice(data[: max(max_bytes // 3, 1)], found.size), offset, max_bytes)
    return text, offset + len(data) - cut


def _content(wish: Wish) -> bytes:
    content = wish.content or ""
    try:
        if wish.mode == "base64":
            return base64.b64decode(content, validate=True)
        return content.encode()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidInput(detail=f"the content is not {wish.mode}: {error}") from None


def _line(listed: Listed) -> str:
    match listed.kind:
        case "directory":
            return f"{listed.name}/"
        case "file":
            return f"{listed.name} ({listed.size} bytes)"
        case _:
            return f"{listed.name} ({listed.kind})"


def _described(listed: Listed) -> str:
    modified = datetime.fromtimestamp(listed.modified_s, UTC).isoformat(timespec="seconds")
    return json.dumps({"kind": listed.kind, "bytes": listed.size, "modified_at": modified})
