"""Run reading: a run as the handler of one of its envelopes sees it."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from colony.agent.asks import Decision
from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.agent.record import RunRecord, SessionRecord
from colony.keys import Keys
from colony.link import Link
from colony.topology.model import ToolDeclaration

_DECISION = ":decision"


async def run_in_hand(
    link: Link,
    keys: Keys,
    *,
    run_id: str,
    session_id: str,
    tools: Sequence[ToolDeclaration],
    decided: bool,
    server: str | None,
) -> RunInHand | None:
    """The run as it is now; None where there is no record of it, or of its session.

    Its decisions are read where the envelope in hand has waited for some, which is `decided`.
    """

    async def history(start: int) -> list[HistoryRow]:
        rows = await link.command("LRANGE", keys.history(session_id), start, -1, server=server)
        return [HistoryRow.decode(row) for row in rows]

    record, session, steers, asks = await asyncio.gather(
        link.command("HGETALL", keys.run(run_id), server=server),
        link.command("HGETALL", keys.agent_session(session_id), server=server),
        link.command("LRANGE", keys.steers(session_id), 0, -1, server=server),
        _decisions(link, keys, run_id, server) if decided else _none(),
    )
    if not record or not session:
        return None
    return RunInHand(
        RunRecord.read(run_id, texts(record)),
        SessionRecord.read(session_id, texts(session)),
        steers=[steer.decode() for steer in steers],
        decisions=asks,
        tools={tool.name: tool for tool in tools},
        history=history,
    )


def texts(flat: Sequence[bytes]) -> dict[str, str]:
    """The fields of a hash as texts."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value.decode(errors="replace") for name, value in pairs}


async def _decisions(
    link: Link, keys: Keys, run_id: str, server: str | None
) -> dict[str, Decision]:
    found: Any = await link.command("HGETALL", keys.asks(run_id), server=server)
    pairs = zip(found[::2], found[1::2], strict=True)
    return {
        name.decode().removesuffix(_DECISION): Decision.model_validate(json.loads(value))
        for name, value in pairs
        if name.endswith(_DECISION.encode())
    }


async def _none() -> dict[str, Decision]:
    return {}
