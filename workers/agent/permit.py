"""Permit: which calls of a batch are made, once all of them are decided.

The whole batch is judged in order before any of it is made. Where a person has to be asked, all
that is to be asked about it is asked at once, and the batch waits; it comes back with every answer.
What is made is what was approved, and nothing is taken for an approval but one.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field, JsonValue, field_validator

from colony.agent.asks import Ask, Decision
from colony.agent.in_hand import RunInHand
from colony.agent.rules import RuleSet, judge, learned_rule, rule_sets
from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.agent.batches import BatchedCall, question_of
from workers.agent.effective import Call, effective, is_of_another
from workers.toolloop import requests
from workers.toolloop.params import Positive, ThreadParams
from workers.toolloop.rows import assistant_row
from workers.toolloop.turns import route_of

# The field of a run that has the calls which wait for others to come to an end.
WAITING: Final = "waiting_calls"

DENIED: Final = "permission denied"
UNANSWERED: Final = "nobody can be asked here, and this call needs somebody's permission"
NOT_APPROVED: Final = "what was approved is not what would be made"


class Params(ThreadParams):
    """The rules of the colony; how many calls of a run are made at once; how long an ask stands."""

    permissions: dict[str, list[str]] = Field(default_factory=dict)
    max_parallel_tools: Positive = 16
    ask_deadline_ms: Annotated[int, Field(ge=1)] = 86_400_000

    @field_validator("permissions")
    @classmethod
    def _are_rules(cls, given: dict[str, list[str]]) -> dict[str, list[str]]:
        RuleSet.parse("settings", given)
        return given


def permit(envelope: Envelope, own: Params, run: RunInHand) -> list[Emission] | None:
    """The calls that are made now and the results of those that are not; nothing while it asks."""
    if route_of(envelope) == "next":
        return [_let_out(call) for call in _next(envelope, run)]
    number = str(run.record.batch)
    announced = run.record.fields.get("announced") == number
    decided = announced and "decided" in envelope.hop
    # A hook may send on what it was given more than once, and late.
    if (announced and not decided) or run.record.fields.get("let_out") == number:
        return None
    if is_of_another(envelope, run):
        return None
    scopes = rule_sets(own.permissions, run.session.rules, run.session.learned)
    calls = [_judged(call, scopes, run) for call in effective(envelope, run)]
    if decided:
        return _begin([_decided(call, scopes, run) for call in calls], own, run)
    _announce(calls, run)
    asks = [call.ask for call in calls if call.ask is not None]
    if not asks:
        return _begin(calls, own, run)
    deadline = envelope.created_at + own.ask_deadline_ms
    for ask in asks:
        run.ask(ask.model_copy(update={"deadline": deadline}))
    return None


def _judged(call: Call, scopes: Sequence[RuleSet], run: RunInHand) -> Call:
    """A call that is let through, refused, or to be asked about."""
    if call.refused:
        return call
    tool = run.tools.get(call.name)
    if tool is None:
        return replace(call, refused=f'unknown tool "{call.name}"')
    found = judge(tool, call.args, scopes)
    if found.effect == "deny":
        return replace(call, refused=f"{DENIED}: {found.reason}")
    ask = Ask.of_call(
        run.id, call.id, call.name, call.args, turn=run.record.turn, reason=found.reason
    ).model_copy(update={"rule": learned_rule(tool, call.args)})
    if ask.id in run.decisions:
        # What another answer has taught meanwhile is no answer to this one.
        return replace(call, ask=ask)
    if found.effect == "allow":
        return call
    if run.session.ask_policy == "deny":
        return replace(call, refused=f"{DENIED}: {UNANSWERED}: {found.reason}")
    return replace(call, ask=ask)


def _decided(call: Call, scopes: Sequence[RuleSet], run: RunInHand) -> Call:
    """A call that was asked about, as it was decided; any other as it is."""
    if call.ask is None:
        return call
    decision = run.decisions.get(call.ask.id)
    if decision is None or not decision.allows:
        return replace(call, refused=_denial(decision))
    approved = call if decision.args is None else replace(call, args=decision.args)
    if decision.args_hash != approved.args_hash:
        return replace(call, refused=f"{DENIED}: {NOT_APPROVED}")
    found = judge(run.tools[call.name], approved.args, scopes)
    if found.effect == "deny":
        return replace(approved, refused=f"{DENIED}: {found.reason}")
    return approved


def _denial(decision: Decision | None) -> str:
    if decision is None:
        return f"{DENIED}: nobody has answered"
    if decision.by == "deadline":
        return f"{DENIED}: {decision.reason or 'nobody answered in time'}"
    return f"{DENIED}: denied by user: {decision.reason or 'no reason given'}"


def _announce(calls: Sequence[Call], run: RunInHand) -> None:
    for call in calls:
        run.event("tool.call", call_id=call.id, name=call.name, args=dict(call.wanted))
        if call.hook is not None:
            decision, text = call.hook
            run.event("hook", seam="before_tool", call_id=call.id, decision=decision, text=text)
    open_calls = json.dumps([[call.id, call.name] for call in calls])
    run.put(open_calls=open_calls)
    run.put_once("announced", run.record.batch)


def _begin(calls: Sequence[Call], own: Params, run: RunInHand) -> list[Emission]:
    """The batch for the store, the calls that are made at once, and what the others come to."""
    number = run.record.batch
    said = [
        BatchedCall(
            id=call.id, name=call.name, arguments=json.dumps(dict(call.args)), batch=number
        ).entry()
        for call in calls
    ]
    row = assistant_row(question_of(run.id, number), number, said)
    expects = [call.id for call in calls]
    cleared = [call for call in calls if not call.refused]
    now, later = cleared[: own.max_parallel_tools], cleared[own.max_parallel_tools :]
    waiting: dict[str, JsonValue] = {
        "first": [call.id for call in now],
        "later": [[call.id, call.name, dict(call.args)] for call in later],
    }
    run.put(waiting_calls=json.dumps(waiting))
    run.put_once("let_out", number)
    refused = [Entry.result(call.id, call.refused, is_error=True) for call in calls if call.refused]
    return [
        requests.settle(own.table, row, route=requests.STORE, expects=expects),
        *map(_let_out, now),
        *([Emission.of(*refused, route="c_res", error_code="not_made")] if refused else []),
    ]


def _next(envelope: Envelope, run: RunInHand) -> list[Call]:
    """The calls that may be made now that others have come to an end."""
    wanted = envelope.hop.get("tool_call_id")
    waiting = json.loads(run.record.fields.get(WAITING) or "{}").get("later", [])
    return [Call(call_id, name, args, args) for call_id, name, args in waiting if call_id == wanted]


def _let_out(call: Call) -> Emission:
    return Emission.of(
        Entry.call(call.id, call.args),
        route="tool",
        tool_name=call.name,
        tool_call_id=call.id,
        args_hash=call.args_hash,
    )
