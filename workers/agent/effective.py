"""Effective: the calls of a batch as whatever stands before its tools has left them.

A cell there passes a call by its entry, changes it by another text in the entry, and refuses it by
a result under its id in place of the entry. What it loses is refused, and so is all of the batch
where it fails: a call is made only by what a cell has said, never by what it has not.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import JsonValue

from colony.agent.asks import Ask
from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Envelope, digest, iteration_of
from workers.agent.batches import BatchedCall, calls_of
from workers.written_arguments import json_in

NO_OBJECT = "invalid_arguments: the arguments are not the JSON of an object"
LOST = "it was not passed on"
ANOTHER_TOOL = "the call is of another tool than before"
NO_ARGUMENTS = "the call has no arguments that are an object"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the batch as it is to be made, or why it is not.

    `wanted` is what the model wrote; `hook` what a cell before the tool has done to it, if it did.
    """

    id: str
    name: str
    args: Mapping[str, JsonValue]
    wanted: Mapping[str, JsonValue]
    refused: str = ""
    hook: tuple[Literal["changed", "refused"], str] | None = None
    ask: Ask | None = None

    @property
    def args_hash(self) -> str:
        """What names the arguments."""
        return digest(dict(self.args))


def effective(envelope: Envelope, run: RunInHand) -> list[Call]:
    """The calls of the batch that the run is in, in the model's order."""
    entries = {entry.id: entry for entry in envelope.body.each("tool_call")}
    refusals = {entry.id: entry.text or "" for entry in envelope.body.each("tool_result")}
    failed = _failure(envelope)
    return [
        _called(made, entries.get(made.id), failed or refusals.get(made.id)) for made in _batch(run)
    ]


def is_of_another(envelope: Envelope, run: RunInHand) -> bool:
    """Whether the calls that came are those of a batch that the run is no longer in."""
    if iteration_of(envelope.context) != run.record.turn:
        return True
    named = {
        entry.id for kind in ("tool_call", "tool_result") for entry in envelope.body.each(kind)
    }
    return bool(named) and named.isdisjoint(call.id for call in _batch(run))


def _batch(run: RunInHand) -> list[BatchedCall]:
    return [call for call in calls_of(run) if call.batch == run.record.batch]


def _failure(envelope: Envelope) -> str:
    """What a cell says that refuses the whole batch, or has failed; empty where it did neither."""
    code = envelope.hop.get("error_code")
    if code is None:
        return ""
    said = envelope.body.last("assistant")
    return f"{code}: {said.text}" if said and said.text else str(code)


def _called(made: BatchedCall, entry: Entry | None, refusal: str | None) -> Call:
    found = json_in(made.arguments)
    wanted = found if isinstance(found, dict) else None
    call = Call(made.id, made.name, wanted or {}, wanted or {}, made.problem)
    if wanted is None and not made.problem:
        return replace(call, refused=NO_OBJECT)
    if made.problem:
        return call
    if refusal is not None or entry is None:
        return _refused(call, LOST if refusal is None else refusal)
    return call if entry.text == made.entry().text else _changed(call, entry)


def _changed(call: Call, entry: Entry) -> Call:
    function = json_in(entry.text)
    name = function.get("name") if isinstance(function, dict) else None
    args = function.get("arguments") if isinstance(function, dict) else None
    args = json_in(args) if isinstance(args, str) else args
    if not isinstance(args, dict):
        return _refused(call, NO_ARGUMENTS)
    if name != call.name:
        # The batch was put together by what its tools may do; another one may do more.
        return _refused(call, ANOTHER_TOOL)
    if digest(args) == call.args_hash:
        return call
    return replace(call, args=args, hook=("changed", json.dumps(args, ensure_ascii=False)))


def _refused(call: Call, why: str) -> Call:
    return replace(call, refused=f"refused by a hook: {why}", hook=("refused", why))
