"""The cell type `file`: reads, writes and lists the files below one folder.

A long result is read here as well, by its `blob:` handle; a cell without a folder reads only those.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import Field, JsonValue

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.errors import InvalidInput, ToolError
from colony.host import Host
from colony.results import is_handle
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.fence import Fence, Listed, Slice
from workers.file.ranges import found, from_character, told
from workers.file.wish import Wish, schema_of_kept
from workers.named_folders import absolute_folder
from workers.tool_call import Answer, answer

_KEPT_ONLY = ToolDeclaration(
    name="file",
    description=(
        "Read a range of a long result that is kept whole, by the blob: handle at its end. "
        "Offsets and limits count bytes."
    ),
    parameters=schema_of_kept(),
    read_only=True,
)


class File(Cell):
    """Do one operation on one path. Nothing outside of `base_path` can be named, by links neither.

    A write replaces a file whole or not at all.
    """

    class Params(Cell.Params):
        """`base_path` is absolute; without it only what is kept is read. With `read_only` nothing
        is written."""

        base_path: str | None = None
        read_only: bool = False
        max_bytes: int = Field(default=262_144, ge=4)
        max_concurrency: int = Field(default=8, ge=1)

    reads_ranges = True
    params: Params
    _fence: Fence | None

    @classmethod
    def declare(cls, params: Mapping[str, JsonValue]) -> ToolDeclaration:
        """A tool that changes files, unless the params say `read_only` or name no folder."""
        if params.get("base_path") is None:
            return _KEPT_ONLY
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
        if spec.params.get("base_path") is not None:
            yield from absolute_folder(spec, "base_path")

    async def start(self, host: Host) -> None:
        """The folder is there, if one is named; raises ConfigError where it is not."""
        written = self.params.base_path
        self._fence = None if written is None else Fence.at(written)

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
        if self._fence is None:
            return "reads long results by their handles, and no folder"
        listed = await asyncio.to_thread(self._fence.entries, ".")
        return f"{self._fence.base} holds {len(listed)} names"

    async def _do(self, wish: Wish, host: Host) -> Answer:
        if wish.op == "write" and self.params.read_only:
            raise InvalidInput(detail="nothing is written here")
        if is_handle(wish.path):
            return await self._kept(wish, host)
        if self._fence is None:
            raise InvalidInput(detail="there is no folder here; a path is a blob: handle")
        return await self._in_folder(wish, self._fence)

    async def _kept(self, wish: Wish, host: Host) -> Answer:
        async def read(offset: int, limit: int) -> Slice:
            return Slice(*await host.read_shelved(wish.path, offset=offset, limit=limit))

        match wish.op:
            case "read":
                begun = await found(wish, read)
                if wish.mode == "base64":
                    piece = await read(begun.offset, self._limit(wish))
                else:
                    begun, piece = await from_character(begun, read, limit=self._limit(wish))
                # What is kept is UTF-8, so what is shown is no longer than what was read.
                most = max(self.params.max_bytes, len(piece.data))
                return told(begun, piece, max_bytes=most)
            case "stat":
                size = (await read(0, 1)).size
                return Answer(json.dumps({"kind": "blob", "bytes": size}), {"operation": "stat"})
            case _:
                raise InvalidInput(detail="a blob can only be read")

    async def _in_folder(self, wish: Wish, fence: Fence) -> Answer:
        async def read(offset: int, limit: int) -> Slice:
            return await asyncio.to_thread(fence.read, wish.path, offset=offset, limit=limit)

        match wish.op:
            case "read":
                begun = await found(wish, read)
                piece = await read(begun.offset, self._limit(wish))
                return told(begun, piece, max_bytes=self.params.max_bytes)
            case "write":
                data = _content(wish)
                await asyncio.to_thread(fence.write, wish.path, data)
                text = f"wrote {len(data)} bytes to {wish.path}"
                return Answer(text, {"operation": "write", "bytes": len(data)})
            case "list":
                listed = await asyncio.to_thread(fence.entries, wish.path)
                text = "\n".join(map(_line, listed))
                return Answer.capped(
                    text, max_bytes=self.params.max_bytes, operation="list", count=len(listed)
                )
            case "stat":
                text = _described(await asyncio.to_thread(fence.stat, wish.path))
                return Answer(text, {"operation": "stat"})

    def _limit(self, wish: Wish) -> int:
        # Four characters of base64 stand for three bytes.
        most = self.params.max_bytes * 3 // 4 if wish.mode == "base64" else self.params.max_bytes
        return min(most, wish.limit or most)


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
