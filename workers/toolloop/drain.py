"""Drain: whatever cannot go on is kept among the errors, and the user is told.

A loop that falls silent is worse than one that fails, so everything that ends here has an answer.
What a provider said of an error is kept with it and goes along as `meta.error`, beside the text.
"""

import json
from collections.abc import Mapping

from pydantic import Field, JsonValue

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope, derived_id
from workers.toolloop import requests
from workers.toolloop.params import HandlerParams

PAYLOAD_CHARACTERS = 4_000

ANSWERS: Mapping[str, str] = {
    "length": "The answer was cut off: the model reached its length limit.",
    "content_filter": "The provider of the model withheld the answer.",
    "iteration_limit": "I stopped without an answer: it needs more rounds of tools than I may use.",
    "context_overflow": (
        "I stopped without an answer: the work has outgrown what the model can read at once, and "
        "could not be made smaller."
    ),
    "result_too_large": "I stopped without an answer: there is more to it than I can hold at once.",
    "stalled": "I stopped without an answer: part of the work was lost on the way.",
}
OTHERWISE = "I stopped without an answer: something went wrong ({kind})."

# What the model said is worth telling where it is the beginning of an answer, or says why not.
_PARTIAL = frozenset({"length", "content_filter"})
_STORE_OPERATIONS = frozenset({"insert", "select", "update", "delete", "settle"})


class Params(HandlerParams):
    """Where errors are kept, and what the user is told by kind; `{kind}` is replaced."""

    table: str = "errors"
    answers: dict[str, str] = Field(default_factory=dict)
    otherwise: str = OTHERWISE


def drain(envelope: Envelope, own: Params) -> list[Emission] | None:
    """The row of the error, and the answer; nothing for the store's reply to such a row."""
    if envelope.hop.get("operation") in _STORE_OPERATIONS:
        return None
    kind = _kind(envelope)
    row_id = derived_id(envelope.id, "drain")
    row: dict[str, JsonValue] = {
        "id": row_id,
        "kind": kind,
        "question": envelope.context.get("question"),
        "payload": _payload(envelope),
    }
    return [
        requests.insert(own.table, row, route="store", call_id=f"drain-{row_id[:8]}"),
        Emission(
            hop={"route": "answer", "error_code": kind},
            body=_body(_answer(envelope, kind, own), _error(envelope)),
        ),
    ]


def _kind(envelope: Envelope) -> str:
    keys = ("error_code", "tool_name", "finish_reason")
    named = (envelope.hop.get(key) for key in keys)
    return next((str(name) for name in named if name), "unknown")


def _payload(envelope: Envelope) -> str:
    entries: list[JsonValue] = [entry.to_json() for entry in envelope.body.entries]
    error = _error(envelope)
    kept: JsonValue = entries if error is None else [{"error": error}, *entries]
    return json.dumps(kept, ensure_ascii=False)[:PAYLOAD_CHARACTERS]


def _error(envelope: Envelope) -> JsonValue:
    meta = envelope.body.__pydantic_extra__.get("meta")
    return meta.get("error") if isinstance(meta, dict) else None


def _body(text: str, error: JsonValue) -> Body:
    entry = Entry.say("assistant", text)
    if error is None:
        return Body.of(entry)
    return Body.model_validate({"messages": (entry,), "meta": {"error": error}})


def _answer(envelope: Envelope, kind: str, own: Params) -> str:
    written = own.answers.get(kind) or ANSWERS.get(kind) or own.otherwise
    told = written.replace("{kind}", kind)
    said: Entry | None = envelope.body.first("assistant") if kind in _PARTIAL else None
    return f"{said.text}\n\n[{told}]" if said and said.text else told
