"""Prep: how a user's message becomes a question of the loop.

Two independent emissions leave at once, the user's row first. Handled twice, they are the same.
"""

import json
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from colony.body import Body
from colony.envelope import Emission, Envelope
from colony.schema import Row
from workers.toolloop import requests
from workers.toolloop.params import ThreadParams
from workers.toolloop.rows import QUESTION, user_row

# The question rides in headers, which are small; the row and the model have all of it.
QUESTION_CHARACTERS = 2_000

_CALL_ID = "u-ins"


class OfferedTool(BaseModel):
    """A tool as the model is told of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str
    parameters: dict[str, JsonValue]


class Params(ThreadParams):
    """What the model is told; without `tools` it is told what the tools themselves declare."""

    persona: str = ""
    tools: dict[str, OfferedTool] = Field(default_factory=dict)


def prep(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission] | None:
    """The question for the store and for the model; nothing for a message without a user's text."""
    return _ask(envelope, Params.read(params), _insert)


def prep_settling(envelope: Envelope, params: Mapping[str, JsonValue]) -> list[Emission] | None:
    """As `prep`, with a row that may complete the first round."""
    return _ask(envelope, Params.read(params), _settle)


def _ask(
    envelope: Envelope, params: Params, write: Callable[[str, Row], Emission]
) -> list[Emission] | None:
    asked = envelope.body.first("user")
    if asked is None:
        return None
    turn_id = _minted(envelope)
    named: dict[str, JsonValue] = {
        "turn_id": turn_id,
        "question": (asked.text or "")[:QUESTION_CHARACTERS],
    }
    row = write(params.table, user_row(turn_id, asked))
    system = _system(params)
    body = Body(messages=(asked,), system=system) if system else Body.of(asked)
    return [
        Emission(hop={**row.hop, **named}, body=row.body),
        Emission(hop={"route": "ullm", **named}, body=body),
    ]


def _minted(envelope: Envelope) -> str:
    # The envelope's own id: derived from its cause, so a repeated handle names the same question.
    given = envelope.context.get("turn_id")
    return given if isinstance(given, str) and given else envelope.id


def _insert(table: str, row: Row) -> Emission:
    return requests.insert(table, row, route="ustore", call_id=_CALL_ID)


def _settle(table: str, row: Row) -> Emission:
    return requests.settle(table, row, route="ustore", call_id=_CALL_ID, answers=[QUESTION])


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
