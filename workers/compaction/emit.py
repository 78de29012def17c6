"""Emit: a summary becomes one row of the thread, or the question goes on without it.

Where the long results of its rounds are kept whole is named behind it. What is no summary is
dropped: an error, a text that was cut off or is empty, a tool call, and one that is no shorter than
what it stands for.
"""

from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.compaction.prep import REFIRE, json_size
from workers.compaction.summary import with_kept
from workers.toolloop import requests
from workers.toolloop.kept import Named
from workers.toolloop.params import ThreadParams
from workers.toolloop.rows import summary_row
from workers.toolloop.turns import question_id


def emit(envelope: Envelope, own: ThreadParams) -> Emission:
    """The summary's row for the store; without a summary, the thread is asked for as it is, and
    `hop.dropped` says why."""
    turn_id, boundary, summary = question_id(envelope), _boundary(envelope), summary_in(envelope)
    if isinstance(summary, Entry) and boundary is not None:
        row = summary_row(turn_id, boundary, summary)
        return requests.insert(own.table, row, route="write", call_id=requests.SUMMARY_CALL_ID)
    refired = requests.select_thread(own.table, turn_id, route=REFIRE)
    dropped = summary if isinstance(summary, str) else "no_boundary"
    return refired.model_copy(update={"hop": {**refired.hop, "dropped": dropped}})


def summary_in(envelope: Envelope) -> Entry | str:
    """What was answered, without what the provider wants back, for it folds one thread only; or
    why that is no summary."""
    finish_reason = str(envelope.hop.get("finish_reason", "stop"))
    if finish_reason != "stop":
        return str(envelope.hop.get("error_code", finish_reason))
    if any(entry.type == "tool_call" for entry in envelope.body.entries):
        return "tool_calls"
    text = "\n\n".join(said.text or "" for said in envelope.body.each("text", "assistant"))
    if not text.strip():
        return "empty_answer"
    kept = Named.read(str(envelope.context.get("compact_kept", "")))
    summary = Entry.say("assistant", with_kept(text, kept))
    return summary if _shorter(summary, envelope) else "not_shorter"


def _boundary(envelope: Envelope) -> int | None:
    found = envelope.context.get("compact_upto")
    try:
        return int(found) if isinstance(found, (int, float, str)) else None
    except ValueError:
        return None


def _shorter(summary: Entry, envelope: Envelope) -> bool:
    folded = envelope.context.get("compact_bytes")
    return not isinstance(folded, (int, float)) or json_size([summary]) < folded
