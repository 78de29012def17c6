"""Limits: the boundary between two turns, where a run takes up what was said and may stop.

What a person said meanwhile is recorded first, also where the run then stops. Of several reasons to
stop the first counts: one that is recorded, a limit, the budget.
"""

from collections.abc import Mapping
from typing import Final, Literal

from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.agent.record import Counter, Limits
from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.toolloop.params import HandlerParams
from workers.toolloop.requests import nothing

LimitStop = Literal["max_turns", "max_tool_calls", "max_consecutive_failures"]

MICRO: Final = 1_000_000


class Ceilings(Limits):
    """What no session of an agent exceeds; 0 leaves it to the session."""

    max_turns: Counter = 0
    max_tool_calls: Counter = 0
    max_consecutive_failures: Counter = 0


class Params(HandlerParams):
    """What every session of the agent is bounded by, beside its own limits, and whether a run that
    meets one may answer once more, without tools."""

    limits: Ceilings = Ceilings()
    last_answer: bool = False


def limits(envelope: Envelope, own: Params, run: RunInHand) -> list[Emission]:
    """The next turn, or why there is none."""
    _take_steers(run)
    bounds = own.limits.tightened(run.record.limits.model_dump())
    stop = run.record.wrapping_up or _met(run, bounds)
    if not stop and over_budget(run, bounds, now_ms=envelope.created_at):
        stop = "budget"
    elif stop and own.last_answer and _may_answer(run, bounds, envelope):
        run.put(wrapping_up=stop)
        stop = ""
    if stop:
        return [nothing(route="end", stop=stop)]
    turn = run.record.turn + 1
    run.put(turn=turn, phase="model", progress="precommit")
    run.count(turns=1)
    run.event("turn.start", turn=turn)
    return [nothing(route="turn", turn=turn)]


def over_budget(run: RunInHand, bounds: Limits, *, now_ms: int) -> bool:
    """Whether the session has used what it may, or the run has taken all of its time."""
    used, record = run.session.usage, run.record
    spent = (
        (used.input_tokens + used.output_tokens, bounds.max_tokens),
        (used.cost_micro, bounds.max_cost * MICRO),
        (now_ms - record.started_at, bounds.max_wall_s * 1000),
    )
    return any(most and amount >= most for amount, most in spent)


def _may_answer(run: RunInHand, bounds: Limits, envelope: Envelope) -> bool:
    """Whether a run that meets a limit is to answer once more: only once, and within its budget."""
    spent = over_budget(run, bounds, now_ms=envelope.created_at)
    return not run.record.wrapping_up and not spent


def _take_steers(run: RunInHand) -> None:
    for text in run.take_steers():
        said = Entry.say("user", text)
        turn = run.record.turn
        run.remember(HistoryRow(kind="user", run_id=run.id, turn=turn, entries=(said,)))
        run.event("steer", text=text)


def _met(run: RunInHand, bounds: Limits) -> str:
    record = run.record
    counted: Mapping[LimitStop, tuple[int, int]] = {
        "max_turns": (record.turns, bounds.max_turns),
        "max_tool_calls": (record.tool_calls, bounds.max_tool_calls),
        "max_consecutive_failures": (record.failures, bounds.max_consecutive_failures),
    }
    met = (stop for stop, (count, most) in counted.items() if most and count >= most)
    return next(met, "")
