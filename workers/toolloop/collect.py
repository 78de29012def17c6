"""Collect: the join of a round by inserts, selects and one guarded update.

Where an envelope came from decides before what it says: a tool that is a store answers with
`operation: insert` too. A request that the store refuses ends its chain; the round then goes quiet,
and the quiet lane goes on with it. A summary that is refused ends nothing: the round goes on as it
is, over the permission that its chain already holds.
"""

from colony.envelope import Emission, Envelope
from workers.toolloop import requests
from workers.toolloop.rereading import rereads
from workers.toolloop.rows import assistant_row, results_in, rows_of, tool_row
from workers.toolloop.thread import Thread
from workers.toolloop.turns import firing, iteration, question_id, route_of
from workers.toolloop.view import ViewParams, fire, in_row


class Params(ViewParams):
    """`park_route` is where chains end that go no further; without it they end here.

    Without `needs_question` a round may fire before the user's row is stored.
    """

    park_route: str | None = None
    needs_question: bool = True


def collect(envelope: Envelope, own: Params) -> list[Emission]:
    """The next step of whatever chain the envelope belongs to."""
    turn_id, number = question_id(envelope), iteration(envelope)
    route = route_of(envelope)
    if route == "c_asst":
        row = assistant_row(turn_id, number, envelope.body.entries)
        return [requests.insert(own.table, row, route=requests.STORE)]
    if route == "c_res":
        # Of a result only its results count, each under the id of the call it answers.
        rows = [tool_row(turn_id, number, in_row(r, own)) for r in results_in(envelope)]
        return [requests.insert(own.table, row, route=requests.STORE) for row in rows]
    if rereads(envelope):
        return [requests.select_thread(own.table, turn_id, route=requests.STORE)]
    step = _after(envelope, own) if route is None else None
    if step is None and own.park_route is not None:
        return [requests.nothing(route=own.park_route)]
    return [step] if step is not None else []


def _after(envelope: Envelope, own: Params) -> Emission | None:
    """What follows from a reply of the store; None where this chain ends."""
    hop, turn_id = envelope.hop, question_id(envelope)
    if "error_code" in hop:
        return None
    if hop.get("operation") == "insert":
        return requests.select_thread(own.table, turn_id, route=requests.STORE)
    if hop.get("operation") == "update":
        won = hop.get("rows_affected") not in (0, None)
        return requests.select_thread(own.table, turn_id, route=requests.GUARD) if won else None
    if hop.get("operation") != "select":
        return None
    thread = Thread.of(rows_of(envelope.body), turn_id)
    if firing(envelope):
        return fire(thread, own)
    number = iteration(envelope)
    asked = thread.question is not None or not own.needs_question
    if not asked or not thread.complete(number):
        return None
    return requests.claim(own.table, turn_id, number, route=requests.GUARD)
