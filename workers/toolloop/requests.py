"""Requests: what the tool loop asks of the store, as emissions on their way to it."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import Emission
from colony.schema import Row
from workers.toolloop.rows import ASSISTANT, COLUMNS

CALL_ID = "c-op"
SUMMARY_CALL_ID = "k-ins"
STORE, GUARD = "cstore", "cguard"


def insert(table: str, row: Row, *, route: str, call_id: str = CALL_ID) -> Emission:
    """Add a row; one that is there already stays as it is."""
    operation: dict[str, JsonValue] = {
        "operation": "insert",
        "table": table,
        "row": row,
        "on_conflict": "ignore",
    }
    return _request(operation, route, call_id)


def upsert(table: str, row: Row, *, route: str, call_id: str = CALL_ID) -> Emission:
    """Add a row, or lay it over the one that is there."""
    return _request({"operation": "upsert", "table": table, "row": row}, route, call_id)


def newest(
    table: str, where: Row, *, columns: Sequence[str], limit: int, max_bytes: int, route: str
) -> Emission:
    """Read the rows that were added last, as many as fit."""
    operation: dict[str, JsonValue] = {
        "operation": "newest",
        "table": table,
        "columns": list(columns),
        "where": where,
        "limit": limit,
        "max_bytes": max_bytes,
    }
    return _request(operation, route, CALL_ID)


def select_thread(table: str, turn_id: str, *, route: str) -> Emission:
    """Read every row of a question."""
    operation: dict[str, JsonValue] = {
        "operation": "select",
        "table": table,
        "columns": list(COLUMNS),
        "where": {"turn_id": turn_id},
    }
    return _request(operation, route, CALL_ID)


def claim(table: str, turn_id: str, iteration: int, *, route: str) -> Emission:
    """Ask for the one permission to go on with a round."""
    operation: dict[str, JsonValue] = {
        "operation": "update",
        "table": table,
        "set": {"fired": 1},
        "where": {"turn_id": turn_id, "iter": iteration, "role": ASSISTANT, "fired": 0},
    }
    return _request(operation, route, CALL_ID)


def settle(
    table: str,
    row: Row,
    *,
    route: str,
    call_id: str = CALL_ID,
    expects: Sequence[str] = (),
    answers: Sequence[str] = (),
) -> Emission:
    """Add a row, and claim its round if that completes it; only who wins hears of it."""
    operation: dict[str, JsonValue] = {
        "operation": "settle",
        "table": table,
        "row": row,
        "key": {"turn_id": row["turn_id"], "iter": row["iter"]},
        "guard": {"role": ASSISTANT, "fired": 0},
        "quiet_unless_won": True,
    }
    named: Mapping[str, Sequence[str]] = {"expects": expects, "answers": answers}
    operation |= {name: list(ids) for name, ids in named.items() if ids}
    return _request(operation, route, call_id)


def nothing(**hop: JsonValue) -> Emission:
    """An emission that says everything in its hop."""
    return Emission(hop=hop, body=Body(messages=()))


def _request(operation: Mapping[str, JsonValue], route: str, call_id: str) -> Emission:
    return Emission.of(Entry.call(call_id, operation), route=route)
