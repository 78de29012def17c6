"""Emit: a summary becomes one row of the thread, or the question goes on without it.

What is no summary is dropped: an error, a text that was cut off or is empty, a tool call, and one
that is no shorter than what it stands for.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.compaction.prep import REFIRE, size_of
from workers.toolloop import requests
from workers.toolloop.params import ThreadParams
from workers.toolloop.rows import summary_row
from workers.toolloop.turns import question_id


def emit(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """The summary's row for the store; without a summary, the thread is asked for as it is."""
    own = ThreadParams.read(params)
    turn_id, boundary, summary = question_id(envelope), _boundary(envelope), _summary(envelope)
    if summary is None or boundary is None or not _shorter(summary, envelope):
        return requests.select_thread(own.table, turn_id, route=REFIRE)
    row = summary_row(turn_id, boundary, summary)
    return requests.insert(own.table, row, route="write", call_id=requests.SUMMARY_CALL_ID)


def _summary(envelope: Envelope) -> Entry | None:
    """What was answered, without what the provider wants back: it folds one thread only."""
    if envelope.hop.get("finish_reason", "stop") != "stop":
        return None
    if any(entry.type == "tool_call" for entry in envelope.body.entries):
        return None
    text = "\n\n".join(said.text or "" for said in envelope.body.each("text", "assistant"))
    return Entry.say("assistant", text) if text.strip() else None


def _boundary(envelope: Envelope) -> int | None:
    found = envelope.context.get("compact_upto")
    try:
        return int(found) if isinstance(found, (int, float, str)) else None
    except ValueError:
        return None


def _shorter(summary: Entry, envelope: Envelope) -> bool:
    folded = envelope.context.get("compact_bytes")
    return not isinstance(folded, (int, float)) or size_of([summary]) < folded
