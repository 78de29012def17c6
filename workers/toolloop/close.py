"""Close: how a round goes on whose results were lost, once everything else has come to rest.

The quiet lane leads here. The rows tell where the question stands: a round that waits gets error
results in place of what is missing and goes its ordinary way; a thread whose fold was lost goes on
without it; a question that nothing can follow gets an answer that says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.schema import Row
from workers.toolloop import requests
from workers.toolloop.params import ThreadParams
from workers.toolloop.rereading import AGAIN
from workers.toolloop.rows import assistant_row, rows_of, tool_row
from workers.toolloop.settle import expected
from workers.toolloop.thread import Round, Thread
from workers.toolloop.turns import compacting, iteration, question_id, route_of

STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Case:
    """Why the question went quiet, what the user has of it, and which round is gone on with."""

    lost: str
    outputs: int
    iteration: int = 0


Mend = Callable[[ThreadParams, str, Round, list[Row]], list[Emission]]


def close(envelope: Envelope, own: ThreadParams) -> list[Emission]:
    """What a quiet question needs, for a round that is joined by `collect`."""
    return _close(envelope, own, _insert)


def close_settling(envelope: Envelope, own: ThreadParams) -> list[Emission]:
    """What a quiet question needs, for a round that is joined by `settle`."""
    return _close(envelope, own, _settle)


def _close(envelope: Envelope, own: ThreadParams, mend: Mend) -> list[Emission]:
    turn_id = question_id(envelope)
    case = _case(envelope)
    if route_of(envelope) == "quiet":
        return [_told(requests.select_thread(own.table, turn_id, route="look"), case)]
    if "error_code" in envelope.hop:
        # Whatever was lost: it could be gone on without, if its rows were to be had.
        case = replace(case, lost=str(envelope.hop["error_code"]))
        return [] if case.outputs else [_failed(case)]
    newest = _newest_round(envelope, turn_id)
    if newest is not None and not newest.claimed:
        rows = [_lost_row(turn_id, newest, call, case.lost) for call in newest.missing]
        case = replace(case, iteration=newest.iteration)
        return [_told(made, case) for made in mend(own, turn_id, newest, rows)]
    if case.outputs:
        return []
    if newest is not None and _was_folded(newest, envelope):
        return [_told(requests.nothing(route=AGAIN, error_code=case.lost), case)]
    return [_failed(case)]


def _failed(case: Case) -> Emission:
    return _told(requests.nothing(route="failed", error_code=case.lost), case)


def _case(envelope: Envelope) -> Case:
    # The quiet lane tells it in hop, which the edge to the store keeps in context.
    told = envelope.hop if route_of(envelope) == "quiet" else envelope.context
    lost = told.get("error_code" if told is envelope.hop else "lost")
    outputs = told.get("outputs")
    return Case(
        lost=lost if isinstance(lost, str) and lost else STALLED,
        outputs=outputs if isinstance(outputs, int) else 0,
    )


def _told(emission: Emission, case: Case) -> Emission:
    """The emission with the case in its hop, for the edge that takes it."""
    told: dict[str, JsonValue] = {
        "lost": case.lost,
        "outputs": case.outputs,
        "iter": case.iteration,
    }
    return emission.model_copy(update={"hop": {**emission.hop, **told}})


def _newest_round(envelope: Envelope, turn_id: str) -> Round | None:
    """The newest round of a question that is known."""
    thread = Thread.of(rows_of(envelope.body), turn_id)
    return thread.in_order[-1] if thread.in_order and thread.question else None


def _was_folded(newest: Round, envelope: Envelope) -> bool:
    """Whether what was lost is a fold of the thread, which is all there and can go on as it is."""
    return compacting(envelope) and newest.iteration == iteration(envelope)


def _lost_row(turn_id: str, found: Round, call_id: str, lost: str) -> Row:
    text = f"{lost}: the result of this call was lost; nothing is known of what it did"
    return tool_row(turn_id, found.iteration, Entry.result(call_id, text, is_error=True))


def _insert(own: ThreadParams, turn_id: str, found: Round, rows: list[Row]) -> list[Emission]:
    made = [requests.insert(own.table, row, route=requests.STORE) for row in rows]
    return made or [requests.select_thread(own.table, turn_id, route=requests.STORE)]


def _settle(own: ThreadParams, turn_id: str, found: Round, rows: list[Row]) -> list[Emission]:
    # The row is there already; said again, it claims a round that was complete without a winner.
    said = assistant_row(turn_id, found.iteration, found.said)
    expects = expected(found.said, found.iteration)
    return [
        requests.settle(own.table, said, route=requests.STORE, expects=expects),
        *(
            requests.settle(own.table, row, route=requests.STORE, answers=[str(row["call_id"])])
            for row in rows
        ),
    ]
