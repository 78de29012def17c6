"""Settle: the join of a round by one operation of the store, which answers only whoever wins.

It leaves the rows, and asks the model, as `collect` does.
"""

from collections.abc import Iterable

from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.operations import MARK
from workers.toolloop import requests
from workers.toolloop.rereading import rereads
from workers.toolloop.rows import QUESTION, assistant_row, results_in, rows_of, tool_row
from workers.toolloop.thread import Thread
from workers.toolloop.turns import firing, iteration, question_id, route_of
from workers.toolloop.view import ViewParams, fire, in_row


def settle(envelope: Envelope, own: ViewParams) -> list[Emission]:
    """Each row as an operation of its own; the thread for the model once a round is won."""
    turn_id, number = question_id(envelope), iteration(envelope)
    route = route_of(envelope)
    if route == "c_asst":
        row = assistant_row(turn_id, number, envelope.body.entries)
        expects = expected(envelope.body.entries, number)
        return [requests.settle(own.table, row, route=requests.STORE, expects=expects)]
    if route == "c_res":
        return [
            requests.settle(
                own.table,
                tool_row(turn_id, number, in_row(entry, own)),
                route=requests.STORE,
                answers=answered(entry),
            )
            for entry in results_in(envelope)
        ]
    if rereads(envelope):
        return [requests.select_thread(own.table, turn_id, route=requests.STORE)]
    if route is not None or "error_code" in envelope.hop or not _goes_on(envelope):
        return []
    thread = Thread.of(rows_of(envelope.body), turn_id)
    return [fire(thread, own)]


def _goes_on(envelope: Envelope) -> bool:
    """Whether the thread comes with the permission to fire it: just won, or won before a fold."""
    operation = envelope.hop.get("operation")
    won = operation == "settle" and envelope.hop.get("rows_affected") == 1
    return won or (operation == "select" and firing(envelope))


def answered(result: Entry) -> list[str]:
    """What a result answers: the call it names, and never the question."""
    call_id = result.id or ""
    return [] if call_id.startswith(MARK) else [call_id]


def expected(calls: Iterable[Entry], iteration: int) -> list[str]:
    """What a round waits for; the first one also for the row of its question."""
    ids = [entry.id or "" for entry in calls if entry.type == "tool_call"]
    return [*ids, QUESTION] if iteration == 0 else ids
