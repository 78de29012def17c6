"""Repair: calls that an earlier run has left without a result are answered before the next one.

The answers say what is known and no more: a call that has no result may have been made.
"""

from collections.abc import Sequence

from colony.agent.history import HistoryRow
from colony.body import Entry

CANCELLED = "the run was cancelled before the result of this call was recorded"
FAILED = "the run failed before the result of this call was recorded"
ENDED = "the run ended before the result of this call was recorded"
UNKNOWN = "nothing is known of what it did"


def missing_results(
    rows: Sequence[HistoryRow], *, run_id: str, turn: int, stop: str
) -> HistoryRow | None:
    """The row that answers every call of the last answer that has no result, in their order.

    `stop` is why the run before has stopped. None where every call is answered.
    """
    said = next((at for at in reversed(range(len(rows))) if rows[at].kind == "assistant"), None)
    if said is None:
        return None
    calls = [entry.id or "" for entry in rows[said].entries if entry.type == "tool_call"]
    behind = [entry for row in rows[said + 1 :] if row.kind == "results" for entry in row.entries]
    answered = {entry.id for entry in behind}
    owed = [call_id for call_id in calls if call_id not in answered]
    if not owed:
        return None
    why = {"cancelled": CANCELLED, "error": FAILED}.get(stop, ENDED)
    results = [Entry.result(call_id, f"{why}; {UNKNOWN}", is_error=True) for call_id in owed]
    return HistoryRow(kind="results", run_id=run_id, turn=turn, entries=tuple(results))
