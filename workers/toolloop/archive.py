"""Archive: a finished answer is kept beside the question it answers."""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.envelope import Emission, Envelope, derived_id
from workers.toolloop import requests
from workers.toolloop.params import HandlerParams


class Params(HandlerParams):
    """Where answers are kept."""

    table: str = "answers"


def archive(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission | None:
    """The row of the answer; nothing for a message without one, such as a reply of the store."""
    own = Params.read(params)
    answer = envelope.body.first("assistant")
    if answer is None:
        return None
    row_id = derived_id(envelope.id, "archive")
    row: dict[str, JsonValue] = {
        "id": row_id,
        "question": envelope.context.get("question"),
        "answer": answer.text,
    }
    return requests.insert(own.table, row, route="store", call_id=f"archive-{row_id[:8]}")
