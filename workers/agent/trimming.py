"""Trimming: what stands for the oldest part of a session where no model folds it.

It says how much has left, what a person asked last in it, which paths its calls named, and where
its long results are kept whole. The same rows make the same text.
"""

import json
from collections.abc import Iterator, Sequence

from colony.agent.history import HistoryRow
from colony.body import Entry
from colony.results import kept_at, within
from workers.compaction.summary import with_kept
from workers.toolloop.kept import Named

MARKER = "[conversation compacted]"
ASKED_BYTES = 2_000
SUMMARY_BYTES = 4_000
MOST_PATHS = 50

_PATHS = ("path", "file_path")


def trimmed(rows: Sequence[HistoryRow], upto: int) -> Entry:
    """The note that stands for every row before number `upto`."""
    left = [row for row in rows[:upto] if row.kind != "summary"]
    entries = [entry for row in left for entry in row.entries]
    calls = sum(entry.type == "tool_call" for entry in entries)
    parts = [
        f"{MARKER} {len(left)} earlier messages with {calls} calls left this view. They are kept,"
        " and not shown any more."
    ]
    summary = next((row for row in reversed(rows) if row.kind == "summary"), None)
    told = summary.entries[0].text or "" if summary else ""
    if told and not told.startswith(MARKER):
        parts.append(f"What was noted of the oldest of them:\n{within(told, SUMMARY_BYTES)}")
    paths = sorted({path for entry in entries for path in _paths(entry)})
    if paths:
        parts.append(f"Paths that their calls named: {', '.join(paths[:MOST_PATHS])}.")
    asked = next((row for row in reversed(left) if row.kind == "user"), None)
    if asked is not None:
        parts.append(
            f"The user said last in them:\n{within(chr(10).join(asked.texts), ASKED_BYTES)}"
        )
    return Entry.say("assistant", with_kept("\n\n".join(parts), kept_of(entries)))


def kept_of(entries: Sequence[Entry]) -> Named:
    """Where of the results among `entries` the long ones are kept whole."""
    found = (kept_at(entry.text or "") for entry in entries if entry.type == "tool_result")
    return Named.of(one for one in found if one is not None)


def _paths(entry: Entry) -> Iterator[str]:
    if entry.type != "tool_call":
        return
    function = _object(entry.text)
    written = function.get("arguments")
    arguments = _object(written) if isinstance(written, str) else written
    for name in _PATHS:
        path = arguments.get(name) if isinstance(arguments, dict) else None
        if isinstance(path, str):
            yield path


def _object(text: str | None) -> dict[str, object]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
