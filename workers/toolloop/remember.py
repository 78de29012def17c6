"""Remember: a tool by which a model keeps a note in the store, and can do nothing else there."""

import json

from pydantic import JsonValue

from colony.body import Entry
from colony.envelope import Emission, Envelope, derived_id
from workers.toolloop import requests
from workers.toolloop.params import HandlerParams


class Params(HandlerParams):
    """Where notes are kept, as rows of `id`, `question` and `text`."""

    table: str = "notes"


def remember(envelope: Envelope, own: Params) -> Emission | None:
    """The note on its way to the store, under the id of the call; else an error result."""
    call = next(envelope.body.each("tool_call"), None)
    if call is None:
        return None
    call_id, text = call.id or "", _note(call.text)
    if text is None:
        detail = "invalid_arguments: remember takes an object with one text, named text"
        result = Entry.result(call_id, detail, is_error=True)
        return Emission.of(result, route="c_res", error_code="invalid_arguments")
    row: dict[str, JsonValue] = {
        "id": derived_id(envelope.id, "note"),
        "question": envelope.context.get("question"),
        "text": text,
    }
    return requests.insert(own.table, row, route="store", call_id=call_id)


def _note(arguments: str | None) -> str | None:
    try:
        found = json.loads(arguments or "")
    except (ValueError, RecursionError):
        return None
    text = found.get("text") if isinstance(found, dict) and set(found) == {"text"} else None
    return text if isinstance(text, str) and text.strip() else None
