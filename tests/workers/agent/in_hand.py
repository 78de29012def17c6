"""Runs as handlers have them in hand, with what is to be seen of their changes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from colony.agent.asks import Decision
from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.agent.record import RunRecord, SessionRecord
from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.topology.model import ToolDeclaration

RUN = "run-1"


def in_hand(
    rows: Sequence[HistoryRow] = (),
    *,
    session: Mapping[str, Any] | None = None,
    steers: Sequence[str] = (),
    tools: Mapping[str, ToolDeclaration] | None = None,
    decisions: Mapping[str, Decision] | None = None,
    **record: Any,
) -> RunInHand:
    """A run with these fields, of a session with these rows."""

    async def history(start: int = 0) -> Sequence[HistoryRow]:
        return rows[start:]

    return RunInHand(
        RunRecord(
            id=RUN, session="s-1", agent="assistant", started_at=0, **{"kind": "prompt", **record}
        ),
        SessionRecord(
            id="s-1",
            agent="assistant",
            owner="me",
            state="running",
            created_at=0,
            updated_at=0,
            run_id=RUN,
            **(session or {}),
        ),
        steers=steers,
        tools=tools,
        decisions=decisions,
        history=history,
    )


def arriving(*entries: Entry, created_at: int = 1_000, context: Any = None, **hop: Any) -> Envelope:
    """The envelope that a handler is given."""
    return Envelope(
        id="m-1",
        trace_id=RUN,
        target="/assistant/cell",
        ttl=64,
        created_at=created_at,
        context={"session_id": "s-1", "turn_id": RUN, "iter": 0, **(context or {})},
        hop=hop,
        body=Body(messages=entries),
    )


def events(run: RunInHand, kind: str | None = None) -> list[dict[str, Any]]:
    """The payloads of the events that were written, or of those of one kind."""
    written = [event for event in run.changes.events if kind in (None, event.kind)]
    return [json.loads(event.payload) for event in written]


def kinds(run: RunInHand) -> list[str]:
    """What kinds of events were written, in order."""
    return [event.kind for event in run.changes.events]


def put(run: RunInHand, scope: str = "run") -> dict[str, str]:
    """The fields that were replaced."""
    return {name: value for (to, name), value in run.changes.fields.items() if to == scope}


def asked(text: str) -> HistoryRow:
    """The row of something that a person said."""
    return _row("user", Entry.say("user", text))


def said(text: str) -> HistoryRow:
    """The row of an answer."""
    return _row("assistant", Entry.say("assistant", text))


def calling(*call_ids: str, **arguments: Any) -> HistoryRow:
    """The row of an answer with these calls."""
    text = json.dumps({"name": "file", "arguments": json.dumps(arguments)})
    calls = (
        Entry(origin="assistant", type="tool_call", id=call_id, text=text) for call_id in call_ids
    )
    return _row("assistant", *calls)


def results(*call_ids: str, text: str = "found") -> HistoryRow:
    """The row of the results of these calls."""
    return _row("results", *(Entry.result(call_id, text) for call_id in call_ids))


def summary(text: str, upto: int) -> HistoryRow:
    """The row of a summary."""
    row = _row("summary", Entry.say("assistant", text))
    return row.model_copy(update={"upto": upto})


def _row(kind: Any, *entries: Entry) -> HistoryRow:
    return HistoryRow(kind=kind, run_id="run-0", turn=0, entries=entries)
