"""The cell type `edit`: changes places in the files below one folder."""

import asyncio
from collections.abc import Iterator, Sequence

from pydantic import Field

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.errors import ToolError
from colony.host import Host
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.edit.wish import EDITABLE_BYTES, Wish
from workers.fence import Fence
from workers.named_folders import absolute_folder
from workers.tool_call import Answer, answer


class Edit(Cell):
    """Do one change, whole or not at all. Nothing outside of `base_path` can be named."""

    class Params(Cell.Params):
        """`base_path` is absolute."""

        base_path: str
        max_concurrency: int = Field(default=8, ge=1)

    default_tool = ToolDeclaration(
        name="edit",
        description="Change a text file: replace an exact text, or insert lines.",
        parameters=Wish.schema_of_tool(),
        read_only=False,
    )
    params: Params
    _fence: Fence

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """A `base_path` that is not absolute, or not there."""
        return absolute_folder(spec, "base_path")

    async def start(self, host: Host) -> None:
        """The folder is there; raises ConfigError where it is not."""
        self._fence = Fence.at(self.params.base_path)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Answer one wish."""
        return await answer(
            envelope, self._do, host=host, operation="edit", arguments=Wish, timeout_ms=None
        )

    async def probe(self) -> str:
        """Where the folder is."""
        return f"{self._fence.base} is there"

    async def _do(self, wish: Wish) -> Answer:
        try:
            places, size = await asyncio.to_thread(self._change, wish)
        except ToolError as error:
            error.hop = {**error.hop, "operation": wish.op}
            raise
        text = f"{wish.path} changed in {places} place{'s' if places != 1 else ''}"
        return Answer(text, {"operation": wish.op, "matches": places, "bytes": size})

    def _change(self, wish: Wish) -> tuple[int, int]:
        places = size = 0

        def change(data: bytes) -> bytes:
            nonlocal places, size
            changed, places = wish.applied_to(data)
            size = len(changed)
            return changed

        self._fence.change(wish.path, change, limit=EDITABLE_BYTES)
        return places, size
