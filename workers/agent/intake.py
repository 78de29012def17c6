"""Intake: where a run begins, whatever began it.

The history is made whole first, in the commit of this very step, so no provider is called with a
call that has no answer. Then a prompt is recorded, unless the user's own hook has refused it.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Emission, Envelope
from workers.agent import repair
from workers.toolloop.params import HandlerParams
from workers.toolloop.requests import nothing

TITLE_LENGTH = 120
RECOVERED = "the run before this one failed for good ({error}); the session goes on from there"

NOT_BEGUN: Mapping[str, JsonValue] = {
    "retry_disposition": "permanent",
    "stream_progress": "precommit",
}


async def intake(envelope: Envelope, own: HandlerParams, run: RunInHand) -> list[Emission]:
    """The run at its first boundary; a compaction goes to the window, a refusal to the end."""
    # A hook may send on what it was given more than once.
    if run.record.fields.get("taken_in"):
        return []
    run.put(taken_in=1, phase="boundary")
    await _repair(run)
    if run.record.kind == "compact":
        return [nothing(route="fold")]
    if run.record.kind == "prompt":
        if "error_code" in envelope.hop:
            _refused(envelope, run)
            return [nothing(route="end", stop="hook", error_code=envelope.hop["error_code"])]
        asked = _asked(envelope)
        if not asked:
            return [nothing(route="end", stop="error", error_code="invalid_input", **NOT_BEGUN)]
        _record(asked, run)
    return [nothing(route="boundary")]


async def _repair(run: RunInHand) -> None:
    before = run.session
    owed = repair.missing_results(
        await run.history(), run_id=run.id, turn=run.record.turn, stop=before.stop
    )
    if owed is not None:
        run.remember(owed)
    if run.record.kind == "prompt" and before.disposition == "permanent":
        run.event("recover_notice", text=RECOVERED.format(error=before.error or "error"))


def _asked(envelope: Envelope) -> tuple[Entry, ...]:
    said = [entry for entry in envelope.body.entries if entry.origin == "user"]
    told = any(entry.type != "text" or (entry.text or "").strip() for entry in said)
    return tuple(said) if told else ()


def _record(asked: tuple[Entry, ...], run: RunInHand) -> None:
    text = "\n\n".join(entry.text or "" for entry in asked if entry.type == "text")
    row = HistoryRow(kind="user", run_id=run.id, turn=run.record.turn, entries=asked)
    run.remember(row)
    title = " ".join(text.split())[:TITLE_LENGTH]
    if title and not run.session.title:
        run.put_in_session(title=title)
        run.event("session.title", title=title)
    run.event("user_prompt", text=text, synthetic=False)


def _refused(envelope: Envelope, run: RunInHand) -> None:
    said = envelope.body.entries
    text = (said[-1].text or "") if said else ""
    run.event("hook", seam="before_prompt", decision="refused", text=text)
