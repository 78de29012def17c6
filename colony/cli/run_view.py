"""Run view: how sessions of agents, their runs and their events are written."""

import time
from collections.abc import Sequence
from typing import Final

import click
from pydantic import JsonValue

from colony.access.run_follower import Frame
from colony.agent.history import HistoryRow
from colony.agent.record import RunRecord, SessionRecord
from colony.cli.cards import arguments, summary
from colony.cli.screen import age, faint, moment, shortened, table, write_json_line
from colony.runs.asks import PendingAsk

LINE_CHARS: Final = 160
TITLE_CHARS: Final = 40
# What of a run its reader is told; the rest is how the run finds its way.
RUN_FACTS: Final = {
    "id", "kind", "state", "started_at", "turns", "tool_calls", "failures", "nudges", "usage",
    "progress",
}  # fmt: skip


def write_sessions(sessions: Sequence[SessionRecord]) -> None:
    """Sessions with their newest run, a line for each."""
    now = time.time_ns() // 1_000_000
    rows = [("session", "agent", "state", "run", "asks", "changed", "title")]
    rows += [
        (
            session.id,
            session.agent,
            session.state,
            session.run_id or "-",
            str(session.pending or "-"),
            age(max(0, now - session.updated_at)),
            shortened(session.title, TITLE_CHARS),
        )
        for session in sessions
    ]
    table(rows)


def write_session(
    session: SessionRecord,
    run: RunRecord | None,
    asks: Sequence[PendingAsk],
    history: Sequence[HistoryRow],
) -> None:
    """A session, one of its runs, what it waits for, and what was said."""
    _pair("session", f"{session.id} of {session.agent}, {session.state}")
    _pair("began", moment(session.created_at))
    if run is not None:
        _pair("run", run.id)
        done = f"{run.turns} turns, {run.tool_calls} calls, {run.failures} failed in a row"
        _pair("done", done)
    if session.stop:
        _pair("stop", f"{session.stop}{f', {session.error}' if session.error else ''}")
    _pair("tokens", f"{session.usage.input_tokens} + {session.usage.output_tokens}")
    _pair("window", f"{session.used} of {session.window or '-'}")
    for asked in asks:
        _pair("asks", f"{asked.ask.id} {asked.ask.tool} {arguments(asked.ask.args)}")
    for row in history:
        _pair(row.kind, " ".join(text for text in row.texts if text) or "-")


def session_told(
    session: SessionRecord,
    run: RunRecord | None,
    asks: Sequence[PendingAsk],
    history: Sequence[HistoryRow],
) -> JsonValue:
    """The same for a program."""
    return {
        **session.model_dump(mode="json"),
        "run": None if run is None else run.model_dump(mode="json", include=RUN_FACTS),
        "asks": [asked.to_json() for asked in asks],
        "messages": [row.model_dump(mode="json", exclude_defaults=True) for row in history],
    }


def write_frame(frame: Frame) -> None:
    """An event in a line."""
    event = frame.event
    if event is None:
        click.echo(faint("- live -" if frame.phase == "mark" else "- gap -"))
    else:
        click.echo(f"{event.seq or '':>5}  {event.kind:22} {summary(event)}".rstrip())


def write_frame_json(frame: Frame) -> None:
    """An event in a line for a program, with the cursor to go on behind it."""
    told = {} if frame.event is None else frame.event.to_json()
    write_json_line({"phase": frame.phase, "cursor": frame.cursor, **told})


def _pair(name: str, value: str) -> None:
    click.echo(f"{faint(f'{name:10}')}{shortened(value, LINE_CHARS)}")
