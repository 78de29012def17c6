"""Prep: how a user's message becomes a question of the loop.

Two independent emissions leave at once, the user's row first. Handled twice, they are the same.
In a session they leave with what was said there before, which the store is asked for first; the
message rides along behind that request, and comes back behind the answer.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope, session_of, turn_of
from colony.log import get_logger
from colony.schema import Row
from workers.toolloop import requests
from workers.toolloop.conversation import RecallParams, is_recalled, question_row, recall, shown
from workers.toolloop.params import ThreadParams
from workers.toolloop.rows import QUESTION, rows_of, user_row

# The question rides in headers, which are small; the row and the model have all of it.
QUESTION_CHARACTERS = 2_000

_CALL_ID = "u-ins"
_STORE = "ustore"

log = get_logger("workers.toolloop")


class OfferedTool(BaseModel):
    """A tool as the model is told of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str
    parameters: dict[str, JsonValue]


class Params(ThreadParams, RecallParams):
    """What the model is told; without `tools` it is told what the tools themselves declare."""

    persona: str = ""
    tools: dict[str, OfferedTool] = Field(default_factory=dict)


Write = Callable[[str, Row], Emission]


def prep(envelope: Envelope, own: Params) -> list[Emission] | None:
    """The question for the store and for the model; nothing for a message without a user's text."""
    return _ask(envelope, own, _insert)


def prep_settling(envelope: Envelope, own: Params) -> list[Emission] | None:
    """As `prep`, with a row that may complete the first round."""
    return _ask(envelope, own, _settle)


def _ask(envelope: Envelope, own: Params, write: Write) -> list[Emission] | None:
    asked = envelope.body.first("user")
    if asked is None:
        return None
    question = _Question(_minted(envelope), asked)
    session_id = session_of(envelope.context)
    if own.conversation is None or not session_id:
        made = _begin(question, (), own, write)
    elif is_recalled(envelope):
        made = _resume(question, envelope, own.conversation, own, write)
    else:
        made = [_recall(question, own.conversation, session_id, own)]
    return [one.model_copy(update={"hop": {**one.hop, **question.named}}) for one in made]


@dataclass(frozen=True, slots=True)
class _Question:
    turn_id: str
    asked: Entry

    @property
    def named(self) -> dict[str, JsonValue]:
        """What the headers have of it."""
        text = (self.asked.text or "")[:QUESTION_CHARACTERS]
        return {"turn_id": self.turn_id, "question": text}


def _begin(
    question: _Question, earlier: tuple[Entry, ...], own: Params, write: Write
) -> list[Emission]:
    said, system = (*earlier, question.asked), _system(own)
    body = Body(messages=said, system=system) if system else Body.of(*said)
    row = user_row(question.turn_id, question.asked, earlier=earlier)
    return [write(own.table, row), Emission(hop={"route": "ullm"}, body=body)]


def _recall(question: _Question, table: str, session_id: str, own: Params) -> Emission:
    request = recall(table, session_id, own)
    body = Body.of(*request.body.entries, question.asked)
    return request.model_copy(update={"body": body})


def _resume(
    question: _Question, reply: Envelope, table: str, own: Params, write: Write
) -> list[Emission]:
    """What a question begins with once the store has answered, whatever it has."""
    counted = reply.hop.get("rows_affected", 0)
    earlier = shown(
        rows_of(reply.body),
        question.asked,
        turn_id=question.turn_id,
        questions=counted if isinstance(counted, int) else 0,
        caps=own,
    )
    stored, asked = _begin(question, earlier, own, write)
    row = question_row(question.turn_id, question.asked)
    kept = requests.upsert(table, row, route=_STORE, call_id=_CALL_ID)
    if "error_code" in reply.hop:
        # It is better answered without what was said before than not at all.
        code = reply.hop["error_code"]
        log.warning("recall_failed", table=table, error_code=code, question=question.turn_id,
                    cell=reply.target, trace=reply.trace_id)  # fmt: skip
        asked = asked.model_copy(update={"hop": {**asked.hop, "recall_error": code}})
    return [stored, kept, asked]


def _minted(envelope: Envelope) -> str:
    # The envelope's own id: derived from its cause, so a repeated handle names the same question.
    return turn_of(envelope.context) or envelope.id


def _insert(table: str, row: Row) -> Emission:
    return requests.insert(table, row, route=_STORE, call_id=_CALL_ID)


def _settle(table: str, row: Row) -> Emission:
    return requests.settle(table, row, route=_STORE, call_id=_CALL_ID, answers=[QUESTION])


def _system(params: Params) -> dict[str, JsonValue]:
    system: dict[str, JsonValue] = {}
    if params.persona:
        system["identity"] = {"soul": {"text": params.persona}}
    if params.tools:
        system["tools"] = {name: _leaf(name, tool) for name, tool in params.tools.items()}
    return system


def _leaf(name: str, tool: OfferedTool) -> dict[str, JsonValue]:
    definition = {"type": "function", "function": {"name": name, **tool.model_dump()}}
    return {"text": json.dumps(definition)}
