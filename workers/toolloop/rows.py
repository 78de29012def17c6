"""Rows: how what was said for a question is written into the thread table, and read back.

A row is one turn: the user's, everything the model said in one answer, one tool's result, or the
summary of the rounds up to its own. Its `call_id` makes it unique in its round, so that a row that
is written twice is one row.
"""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.long_results import named
from colony.operations import MARK
from colony.schema import Row

USER, ASSISTANT, TOOL, SUMMARY = "user", "assistant", "tool", "summary"
COLUMNS = ("turn_id", "iter", "role", "fired", "turn")

# What stands for the user's row where results are counted. No call has such an id.
QUESTION = f"{MARK}question"


def user_row(turn_id: str, entry: Entry, *, earlier: Sequence[Entry] = ()) -> Row:
    """The row of the question itself, behind what was said `earlier` in its session.

    So every round of the question, and whoever reads the record, sees the same conversation.
    """
    turn: JsonValue = entry.to_json()
    if earlier:
        turn = [*(said.to_json() for said in earlier), turn]
    return _row(turn_id, 0, USER, QUESTION, turn)


def assistant_row(turn_id: str, iteration: int, entries: Sequence[Entry]) -> Row:
    """The row of a whole answer, its calls and its prose; the guard of its round is open."""
    turn: list[JsonValue] = [entry.to_json() for entry in entries]
    return {**_row(turn_id, iteration, ASSISTANT, "", turn), "fired": 0}


def tool_row(turn_id: str, iteration: int, result: Entry) -> Row:
    """The row of one result, under the id of the call it answers."""
    return _row(turn_id, iteration, TOOL, result.id or "", result.to_json())


def summary_row(turn_id: str, boundary: int, summary: Entry) -> Row:
    """The row of a summary of all rounds up to and with `boundary`."""
    return _row(turn_id, boundary, SUMMARY, "", summary.to_json())


def results_in(envelope: Envelope) -> list[Entry]:
    """The results that an envelope brings, each with the handle of what is kept of it whole.

    It stands at the end, which is shown however much of a result is left out.
    """
    return [named(entry, envelope.hop) for entry in envelope.body.each("tool_result")]


def entries_of(row: Row) -> list[Entry]:
    """The entries that a row holds."""
    turn = json.loads(str(row["turn"]))
    return [Entry.model_validate(item) for item in (turn if isinstance(turn, list) else [turn])]


def rows_of(reply: Body) -> list[Row]:
    """The rows in a reply of the store."""
    result = next(reply.each("tool_result"), None)
    found = json.loads((result and result.text) or "[]")
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _row(turn_id: str, iteration: int, role: str, call_id: str, turn: JsonValue) -> Row:
    text = json.dumps(turn, ensure_ascii=False)
    return {"turn_id": turn_id, "iter": iteration, "role": role, "call_id": call_id, "turn": text}
