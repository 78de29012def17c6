"""Finish: how a run ends, and what its result says.

A run that was steered in its last moment goes on instead, at its next boundary.
"""

from typing import Final, get_args

from colony.agent.changes import End
from colony.agent.in_hand import RunInHand
from colony.agent.record import Disposition, Progress, Stop
from colony.envelope import Emission, Envelope
from workers.toolloop.params import HandlerParams
from workers.toolloop.requests import nothing

STOPS: Final = frozenset(get_args(Stop))
DISPOSITIONS: Final = frozenset(get_args(Disposition))
PROGRESS: Final = frozenset(get_args(Progress))


def finish(envelope: Envelope, own: HandlerParams, run: RunInHand) -> list[Emission]:
    """The end of the run, and its next boundary, where it goes on if somebody has steered it."""
    end = _end(envelope, run)
    run.put(phase="ended")
    run.finish(end)
    if end.stop == "budget" and _owes_retry(run):
        # Nothing was tried, so what was to be tried again is still owed.
        before = run.session
        run.put_in_session(
            state="idle", retry_pending=1, disposition=before.disposition, progress=before.progress
        )
    return [nothing(route="boundary")]


def _end(envelope: Envelope, run: RunInHand) -> End:
    hop = envelope.hop
    code = str(hop.get("error_code") or "")
    stop = str(hop.get("stop") or "")
    if code and stop not in ("error", "hook"):
        # Only a cell of the user's own says so of an end that was none by itself.
        stop = "hook"
        run.event("hook", seam="at_end", decision="refused", text=code)
    elif run.record.wrapping_up:
        # The last answer at a limit is none of the run's own: it had stopped before.
        stop, code = run.record.wrapping_up, ""
    elif not stop:
        stop = "end_turn"
    if stop not in STOPS:
        stop, code = "error", code or stop
    text = "" if stop == "hook" else _text(envelope, run, stop)
    if stop != "error":
        return End(stop, text=text, error=code)  # type: ignore[arg-type]
    return End(
        "error",
        text=text,
        error=code or "error",
        disposition=_one_of(DISPOSITIONS, hop.get("retry_disposition")),  # type: ignore[arg-type]
        progress=_one_of(PROGRESS, hop.get("stream_progress")),  # type: ignore[arg-type]
    )


def _text(envelope: Envelope, run: RunInHand, stop: str) -> str:
    """The last meaningful text; a hook may have changed that of the answer."""
    said = envelope.body.last("assistant") if stop == "end_turn" else None
    text = (said.text or "") if said else ""
    return text if text.strip() else run.record.text


def _owes_retry(run: RunInHand) -> bool:
    return run.record.kind == "retry" and run.record.turns == 0


def _one_of(known: frozenset[str], found: object) -> str:
    return found if isinstance(found, str) and found in known else "unknown"
