"""Guardrail: a result that looks dangerous is held until somebody has seen to it.

It stands between a tool and the collector. What it holds is told to nobody, and the model waits. On
a yes exactly this result goes on, once; on a no, or where nobody answers, an error in its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field, JsonValue, field_validator

from colony.agent.asks import Ask
from colony.agent.in_hand import RunInHand
from colony.body import Body, Entry
from colony.envelope import Emission, Envelope, digest
from workers.agent.patterns import checked, found_in
from workers.toolloop.params import HandlerParams

# What a text has that gives orders to a model, or gives something away. None is proof of anything.
PATTERNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "orders": r"(?i)\b(?:ignore|disregard|forget)\s(?:[a-z]+\s){0,4}"
        r"(?:instructions?|prompts?|rules)\b",
        "role": r"(?i)<\|?(?:im_start|system|assistant)\|?>|\byou\sare\snow\s(?:a|an|the|in)\b",
        "private_key": r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY-----",
        "access_key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[oprsu]_[A-Za-z0-9]{36}"
        r"|\bsk-[A-Za-z0-9_-]{20}|\bxox[abpr]-[0-9A-Za-z-]{10}",
    }
)
WITHHELD: Final = "result withheld"
UNANSWERED: Final = "nobody can be asked here whether it may be shown"
NOT_RELEASED: Final = "what was released is not what is held"

# The fields of a run that name what is held.
_HELD: Final = "held"


class Params(HandlerParams):
    """What is held, by name; how much of it the ask shows, in characters; how long that stands."""

    hold: dict[str, str] = Field(default_factory=lambda: dict(PATTERNS))
    shows: Annotated[int, Field(ge=0)] = 0
    ask_deadline_ms: Annotated[int, Field(ge=1)] = 86_400_000

    @field_validator("hold")
    @classmethod
    def _can_be_searched(cls, given: dict[str, str]) -> dict[str, str]:
        return dict(checked(given))


@dataclass(frozen=True, slots=True)
class _Held:
    """A result that is not to be shown before somebody says so."""

    result: Entry
    ask: Ask


def guardrail(envelope: Envelope, own: Params, run: RunInHand) -> list[Emission] | None:
    """The results that came, as they may be shown; nothing while somebody is asked about one."""
    held = [_held(entry, found, own, run) for entry, found in _suspicious(envelope, own, run)]
    if not held:
        return [_passed_on(envelope, {})]
    if "decided" in envelope.hop:
        return [_passed_on(envelope, {one.ask.call_id: _released(one, run) for one in held})]
    if any(run.record.fields.get(_field(one)) for one in held):
        # It came before, and only the first result of a call counts.
        return None
    if run.session.ask_policy == "deny":
        for one in held:
            _tell(one, "withheld", UNANSWERED, run)
        return [_passed_on(envelope, {one.ask.call_id: _error(one, UNANSWERED) for one in held})]
    deadline = envelope.created_at + own.ask_deadline_ms
    for one in held:
        _tell(one, "held", one.ask.reason, run)
        run.put(**{_field(one): 1})
        run.ask(one.ask.model_copy(update={"deadline": deadline}))
    return None


def _suspicious(envelope: Envelope, own: Params, run: RunInHand) -> list[tuple[Entry, list[str]]]:
    """The results of calls that are open which have something that is held."""
    owed = dict(run.record.open_calls)
    looked_at = [
        (entry, found_in([entry.text or ""], own.hold))
        for entry in envelope.body.each("tool_result")
        if entry.id in owed
    ]
    return [(entry, found) for entry, found in looked_at if found]


def _held(result: Entry, found: list[str], own: Params, run: RunInHand) -> _Held:
    call_id, text = result.id or "", result.text or ""
    args: dict[str, JsonValue] = {
        "found": [*found],
        "characters": len(text),
        "digest": digest(text),
    }
    if own.shows:
        args["text"] = text[: own.shows]
    ask = Ask.of_call(
        run.id,
        call_id,
        dict(run.record.open_calls)[call_id],
        args,
        turn=run.record.turn,
        reason=f"the result has {', '.join(found)}",
        kind="result_release",
    )
    return _Held(result, ask)


def _released(held: _Held, run: RunInHand) -> Entry:
    """The result that was released, or the error in its place."""
    decision = run.decisions.get(held.ask.id)
    if decision is None or not decision.allows:
        why = decision.reason if decision else "nobody has answered"
        _tell(held, "withheld", why, run)
        return _error(held, why)
    if decision.args_hash != held.ask.args_hash:
        _tell(held, "withheld", NOT_RELEASED, run)
        return _error(held, NOT_RELEASED)
    _tell(held, "released", held.ask.reason, run)
    return held.result


def _error(held: _Held, why: str) -> Entry:
    told = f"{WITHHELD}: {held.ask.reason}; {why or 'no reason given'}"
    return Entry.result(held.ask.call_id, told, is_error=True)


def _tell(held: _Held, decision: str, text: str, run: RunInHand) -> None:
    run.event("hook", seam="after_tool", call_id=held.ask.call_id, decision=decision, text=text)


def _passed_on(envelope: Envelope, instead: Mapping[str, Entry]) -> Emission:
    """What came, with these results in place of those that have their ids."""
    if not instead:
        return Emission(hop=_hop(envelope), body=envelope.body)
    messages = [
        instead.get(entry.id or "", entry) if entry.type == "tool_result" else entry
        for entry in envelope.body.entries
    ]
    return Emission(hop=_hop(envelope), body=Body.of(*messages))


def _hop(envelope: Envelope) -> dict[str, JsonValue]:
    return {name: value for name, value in envelope.hop.items() if name != "decided"}


def _field(held: _Held) -> str:
    return f"{_HELD}:{held.ask.id}"
