"""Dispatch: what becomes of an answer of the model.

It is written down first: its text, what it cost, its calls. Then its calls go out, batch by batch;
or it ends the run; or, where it says nothing, the model is told to go on, a few times.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import Field, JsonValue

from colony.agent.events import chunks_of
from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Emission, Envelope, digest
from workers.agent import tokens
from workers.agent.batches import BatchedCall, batch, in_batches, kept
from workers.agent.charges import Price, charge, number
from workers.toolloop.calls import ToolCall, read_calls, spoken
from workers.toolloop.params import HandlerParams, Positive
from workers.toolloop.requests import nothing

GO_ON: Final = "You have said nothing and called no tool. Go on, and make progress with the task."
ANSWER_NOW: Final = (
    "You have said nothing and called no tool again. Stop investigating: answer now with what you "
    "have."
)
# How often the same call is made before the model is told so, and before it is not made any more.
WARNED_AT: Final = 3
REFUSED_AT: Final = 5
REPEATED: Final = "this call was made {count} times, with the same arguments each time"

EMPTY: Final = "empty_answer"
TOO_LONG: Final = "context_length"
# Why an answer stops, where that is not its own end; nothing of the kind is asked to go on.
STOPS: Final[Mapping[str, str]] = {
    "length": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
}


class Params(HandlerParams):
    """How often a model that says nothing is told to go on, never where it is negative; what models
    cost; how many calls of one answer are made."""

    nudges: int = 2
    prices: dict[str, Price] = Field(default_factory=dict)
    max_calls: Positive = 16


def dispatch(envelope: Envelope, own: Params, run: RunInHand) -> list[Emission]:
    """What follows from an answer, once it is written down."""
    hop = envelope.hop
    if hop.get("finish_reason") == "error" and hop.get("error_code") != EMPTY:
        return [_failed(envelope, own, run)]
    calls = _calls(envelope, own, run)
    said = _said(envelope, calls)
    text = "".join(entry.text or "" for entry in said if entry.type == "text")
    _write_down(envelope, said, text, own, run)
    if text.strip():
        run.put(text=text)
    if calls:
        return [_dispatched(calls, run)]
    reason = str(hop.get("finish_reason") or "stop")
    if run.record.wrapping_up:
        return [_end(run.record.wrapping_up, said)]
    if reason in STOPS:
        return [_end(STOPS[reason], said)]
    if text.strip():
        return [_end("end_turn", said)]
    return [_nudged(own, run)]


def _calls(envelope: Envelope, own: Params, run: RunInHand) -> list[ToolCall]:
    """The calls of an answer; none of the one that a run at a limit is allowed."""
    if envelope.hop.get("finish_reason") != "tool_calls" or run.record.wrapping_up:
        return []

    def name_call(position: int) -> str:
        return f"call_{digest([run.id, run.record.turn, position])}"

    entries = envelope.body.each("tool_call")
    return read_calls(entries, name_call=name_call, limit=own.max_calls)


def _said(envelope: Envelope, calls: Sequence[ToolCall]) -> list[Entry]:
    """An answer as its session remembers it."""
    if envelope.hop.get("finish_reason") == "error":
        return []
    return spoken(envelope.body.entries, calls)


def _write_down(
    envelope: Envelope, said: Sequence[Entry], text: str, own: Params, run: RunInHand
) -> None:
    offset = 0
    for chunk in chunks_of(text):
        run.event("message.delta", text=chunk, offset=offset)
        offset += len(chunk)
    _charge(envelope, text, own, run)
    run.put(progress="complete")
    if said:
        row = HistoryRow(kind="assistant", run_id=run.id, turn=run.record.turn, entries=tuple(said))
        run.remember(row)


def _charge(envelope: Envelope, text: str, own: Params, run: RunInHand) -> None:
    """Count what the answer took. Where nobody counted, what is told is about as much as it was."""
    hop, meta = envelope.hop, (envelope.body.model_extra or {}).get("meta")
    charged = charge(hop, own.prices, run)
    told = {"input_tokens": charged.read, "output_tokens": charged.given}
    estimated = not charged.read and not charged.given
    if estimated:
        told = {"input_tokens": run.session.used, "output_tokens": tokens.of_text(text)}
    run.event(
        "turn.end",
        usage={**told},
        estimated=estimated,
        duration_ms=number(meta.get("latency_ms")) if isinstance(meta, dict) else 0,
        finish_reason=str(hop.get("finish_reason") or ""),
        model=charged.model,
        used=charged.read or run.session.used,
        window=run.session.window,
    )


def _failed(envelope: Envelope, own: Params, run: RunInHand) -> Emission:
    """The end of a run whose model gave no answer; a window that was too long is tried folded."""
    hop = envelope.hop
    code = str(hop.get("error_code") or "model_failed")
    if code == TOO_LONG and run.record.compacted_turn != run.record.turn:
        return nothing(route="fold")
    charge(hop, own.prices, run)
    disposition, progress = hop.get("retry_disposition"), hop.get("stream_progress")
    return nothing(
        route="end",
        stop="error",
        error_code=code,
        retry_disposition=disposition if isinstance(disposition, str) else "unknown",
        stream_progress=progress if isinstance(progress, str) else "unknown",
    )


def _dispatched(calls: Sequence[ToolCall], run: RunInHand) -> Emission:
    """The first batch, with all of them kept."""
    made = [
        _counted(call, run) for call in in_batches(calls, run.tools, first=run.record.batch + 1)
    ]
    first = made[0].batch
    run.put(calls=kept(made), phase="tools", batch=first)
    return batch(made, first)


def _counted(call: BatchedCall, run: RunInHand) -> BatchedCall:
    """A call that knows whether it was made too often."""
    named: JsonValue = [call.name, json.loads(call.arguments)]
    repeat = f"repeat:{digest(named)}"
    run.count(**{repeat: 1})
    before = run.record.repeats.get(repeat.removeprefix("repeat:"), 0)
    count = before + run.changes.counts[("run", repeat)]
    note = REPEATED.format(count=count)
    if count >= REFUSED_AT and not call.problem:
        return call.model_copy(update={"problem": f"repeated_call: {note}"})
    return call.model_copy(update={"note": note}) if count >= WARNED_AT else call


def _nudged(own: Params, run: RunInHand) -> Emission:
    """The next boundary, with a word to the model; or the end, where it had enough of them."""
    if run.record.nudges >= own.nudges:
        run.event("no_progress", text="the model said nothing, and was told to go on often enough")
        return _end("no_progress", ())
    text = ANSWER_NOW if run.record.nudges + 1 >= own.nudges else GO_ON
    note = Entry.say("user", text)
    run.count(nudges=1)
    run.remember(HistoryRow(kind="note", run_id=run.id, turn=run.record.turn, entries=(note,)))
    run.event("no_progress", text=text)
    run.event("user_prompt", text=text, synthetic=True)
    return nothing(route="boundary")


def _end(stop: str, said: Sequence[Entry]) -> Emission:
    return Emission.of(*said, route="end", stop=stop)
