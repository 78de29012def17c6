"""Results: what a search found, fitted to what a model may be shown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from workers.tool_call import Answer


class Source(Protocol):
    """Something that can be searched."""

    async def search(self, query: str) -> Answer:
        """What it has on `query`; raises ToolError where it cannot say."""

    async def close(self) -> None:
        """Let go of what it holds."""


@dataclass(frozen=True)
class Caps:
    """How much of a reply is passed on."""

    max_results: int
    max_bytes: int

    def fit(
        self, reply: Mapping[str, JsonValue], results: Sequence[JsonValue], *, total: int, size: int
    ) -> Answer:
        """`reply` with as many of its `results` as the caps allow, from the first.

        Where some of `total` are missing it says so. `size` is that of the whole reply.
        """
        kept = list(results[: self.max_results])
        text = _dump(reply, kept, total)
        while kept and len(text.encode(errors="replace")) > self.max_bytes:
            kept.pop()
            text = _dump(reply, kept, total)
        cut: dict[str, JsonValue] = {"truncated": True} if len(kept) < total else {}
        answer = Answer.capped(text, max_bytes=self.max_bytes)
        return Answer(answer.text, {**answer.hop, "result_count": total, "bytes": size, **cut})


def _dump(reply: Mapping[str, JsonValue], kept: list[JsonValue], total: int) -> str:
    cut = {"truncated": True, "total_results": total} if len(kept) < total else {}
    return json.dumps({**reply, "results": kept, **cut}, ensure_ascii=False)
