"""Collector: the results of a batch, each told as it comes and all of them kept in call order.

A result is shown at once to whoever follows. It counts once the store says that it completed its
batch: then all results of the batch are written down together, for the model and for the record.
"""

import json
from typing import Final, Protocol

from pydantic import JsonValue

from colony.agent.events import EventKind
from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.log import get_logger
from workers.agent.batches import batch, calls_of, question_of
from workers.agent.permit import WAITING
from workers.toolloop import requests
from workers.toolloop.requests import nothing
from workers.toolloop.rows import results_in, rows_of, tool_row
from workers.toolloop.thread import Thread
from workers.toolloop.turns import route_of
from workers.toolloop.view import ViewParams, in_row, shown_results

NO_RESULT: Final = "the tool gave no result for this call"

log = get_logger("workers.agent")


class Write(Protocol):
    """How an event is written: into the log, or past it."""

    def __call__(self, kind: EventKind, *, turn: int | None = None, **payload: JsonValue) -> None:
        """Write it."""


def collector(envelope: Envelope, own: ViewParams, run: RunInHand) -> list[Emission]:
    """The rows of what came, or what follows once a batch is complete."""
    if _is_of_store(envelope, run):
        return _joined(envelope, own, run)
    emissions: list[Emission] = []
    for result in _results(envelope, run):
        emissions += _taken(in_row(result, own), own, run)
    return emissions


def _is_of_store(envelope: Envelope, run: RunInHand) -> bool:
    """Whether the store answers. The error of a tool names an operation, too: that of the tool."""
    owed = dict(run.record.open_calls)
    answers = any(result.id in owed for result in results_in(envelope))
    return "operation" in envelope.hop and route_of(envelope) is None and not answers


def _results(envelope: Envelope, run: RunInHand) -> list[Entry]:
    """What came for calls that are open and have no result yet; one that gave none has failed."""
    named = results_in(envelope)
    code = envelope.hop.get("error_code")
    call_id = envelope.hop.get("tool_call_id")
    if not named and isinstance(call_id, str):
        named = [Entry.result(call_id, f"{code or 'no_result'}: {NO_RESULT}", is_error=True)]
    owed = dict(run.record.open_calls)
    found: dict[str, Entry] = {}
    for result in named:
        result_id = result.id or ""
        if result_id in owed and not run.record.fields.get(_seen(run, result_id)):
            found.setdefault(result_id, result)
        else:
            log.info("result_late", run=run.id, call=result_id)
    return [*found.values()]


def _taken(result: Entry, own: ViewParams, run: RunInHand) -> list[Emission]:
    """One result on its way to the store, and the next call that waited for this one."""
    call_id, number = result.id or "", run.record.batch
    row = tool_row(question_of(run.id, number), number, result)
    settled = requests.settle(own.table, row, route=requests.STORE, answers=[call_id])
    run.put(**{_seen(run, call_id): 1})
    _write(run.tell, "tool.result.available", shown_results([result], own)[0], run)
    return [settled, *_next(call_id, run)]


def _next(call_id: str, run: RunInHand) -> list[Emission]:
    """The call that waited for this one.

    As many as were let out at first are under way at any time: each call lets out the one that
    stands so many places behind it.
    """
    waiting = json.loads(run.record.fields.get(WAITING) or "{}")
    first = waiting.get("first", [])
    order = [*first, *(later_id for later_id, *_ in waiting.get("later", []))]
    at = order.index(call_id) + len(first) if call_id in order else len(order)
    return [nothing(route="next", tool_call_id=order[at])] if at < len(order) else []


def _joined(envelope: Envelope, own: ViewParams, run: RunInHand) -> list[Emission]:
    """What follows from the store's answer: nothing, unless it says that the batch is complete."""
    number = run.record.batch
    if envelope.hop.get("operation") != "settle" or envelope.hop.get("rows_affected") != 1:
        return []
    thread = Thread.of(rows_of(envelope.body), question_of(run.id, number))
    found = thread.rounds.get(number)
    if found is None or not run.record.open_calls:
        return []
    calls = calls_of(run)
    notes = {call.id: call.note for call in calls}
    results = [_noted(result, notes) for result in found.answers]
    for result in shown_results(results, own):
        _write(run.event, "tool.result", result, run)
    _count(results, run)
    run.remember(
        HistoryRow(kind="results", run_id=run.id, turn=run.record.turn, entries=tuple(results))
    )
    run.put(open_calls="[]")
    later = [call.batch for call in calls if call.batch > number]
    if later:
        run.put(batch=min(later))
        return [batch(calls, min(later))]
    run.put(phase="boundary")
    return [nothing(route="boundary")]


def _count(results: list[Entry], run: RunInHand) -> None:
    failures = run.record.failures
    for result in results:
        failures = failures + 1 if result.is_error else 0
    run.put(failures=failures)
    run.count(tool_calls=len(results))


def _write(write: Write, kind: EventKind, result: Entry, run: RunInHand) -> None:
    names = dict(run.record.open_calls)
    write(
        kind,
        call_id=result.id,
        name=names.get(result.id or "", ""),
        content=result.text or "",
        is_error=bool(result.is_error),
    )


def _noted(result: Entry, notes: dict[str, str]) -> Entry:
    note = notes.get(result.id or "")
    if not note:
        return result
    return result.model_copy(update={"text": f"{result.text or ''}\n\n[{note}]"})


def _seen(run: RunInHand, call_id: str) -> str:
    return f"seen:{run.record.batch}:{call_id}"
