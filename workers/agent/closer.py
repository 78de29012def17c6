"""Closer: how a run goes on that has lost its way, once everything else of it has come to rest.

While tools run, the calls of the batch that have no result are answered as lost and the run goes
on. It does so without a fold that was lost. Whatever else was lost ends it: the result says so, and
whether another try may help.
"""

from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.agent.batches import calls_of, question_of
from workers.toolloop import requests
from workers.toolloop.close import STALLED
from workers.toolloop.params import ThreadParams
from workers.toolloop.requests import nothing
from workers.toolloop.rows import assistant_row, rows_of, tool_row
from workers.toolloop.thread import Round, Thread
from workers.toolloop.turns import route_of

LOST = "the result of this call was lost; nothing is known of what it did"

# What is lost with a process or with time, and may be tried again.
PASSING = frozenset({STALLED, "message_timeout", "delivery_limit"})


def closer(envelope: Envelope, own: ThreadParams, run: RunInHand) -> list[Emission]:
    """What a quiet run needs: the rows of its open batch, the results it lacks, or its end."""
    turn_id = question_of(run.id, run.record.batch)
    if route_of(envelope) == "quiet":
        lost = str(envelope.hop.get("error_code") or STALLED)
        if envelope.hop.get("dead_target") == _beside(envelope, "condense"):
            return [_unfolded(run)]
        if run.record.phase != "tools" or not run.record.open_calls:
            return [_end(lost, run)]
        look = requests.select_thread(own.table, turn_id, route="look")
        return [look.model_copy(update={"hop": {**look.hop, "lost": lost}})]
    lost = str(envelope.context.get("lost") or STALLED)
    if "error_code" in envelope.hop:
        return [_end(lost, run)]
    number = run.record.batch
    found = Thread.of(rows_of(envelope.body), turn_id).rounds.get(number) or Round(number)
    found.said = found.said or [call.entry() for call in calls_of(run) if call.batch == number]
    if found.claimed or not found.expected:
        return [_end(lost, run)]
    return _mended(found, turn_id, lost, own)


def _mended(found: Round, turn_id: str, lost: str, own: ThreadParams) -> list[Emission]:
    """The row of the batch once more, which claims it where nothing is missing, and a row for each
    result that is.

    They go to the store at once: a result that was lost on its way there has been told already.
    """
    said = assistant_row(turn_id, found.iteration, found.said)
    made = [requests.settle(own.table, said, route=requests.STORE, expects=found.expected)]
    for call_id in found.missing:
        result = Entry.result(call_id, f"{lost}: {LOST}", is_error=True)
        row = tool_row(turn_id, found.iteration, result)
        made.append(requests.settle(own.table, row, route=requests.STORE, answers=[call_id]))
    return made


def _unfolded(run: RunInHand) -> Emission:
    """The run on its way to its window, which folds no more in this turn."""
    run.put(compacted_turn=run.record.turn)
    if run.record.kind == "compact":
        return nothing(route="end", stop="compacted")
    return nothing(route="turn")


def _beside(envelope: Envelope, name: str) -> str:
    """The path of a cell of the same hive."""
    return f"{(envelope.target or '').rpartition('/')[0]}/{name}"


def _end(lost: str, run: RunInHand) -> Emission:
    passing = "retryable" if lost in PASSING else "unknown"
    return nothing(
        route="end",
        stop="error",
        error_code=lost,
        retry_disposition=passing,
        stream_progress=run.record.progress,
    )
