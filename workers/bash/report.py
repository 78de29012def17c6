"""Reports: what a command wrote and how it ended, as a text for the model and a hop for edges."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import JsonValue

from colony.confinement.output import Captured
from colony.confinement.programs import Finished
from colony.results import MAX_RESULT_BYTES, ends_of, head_of

STDERR_START = "##colony-stderr-start##"
STDERR_END = "##colony-stderr-end##"
_FRAME_BYTES = len(f"\n{STDERR_START}\n\n{STDERR_END}")

# Room for what is said of a cut: with it no result is longer than any may be.
_MARKS_BYTES = 256

# What a command complains of is short next to what it shows, and must not be crowded out by it.
_STDERR_SHARE = 4


@dataclass(frozen=True, slots=True)
class Report:
    """`whole` is what was kept of all that was written, where `text` was cut."""

    text: str
    hop: dict[str, JsonValue]
    whole: str | None


def report(finished: Finished, max_bytes: int) -> Report:
    """Stdout, then stderr between two lines, each cut where both exceed `max_bytes`."""
    stdout, stderr = finished.stdout, finished.stderr
    stdout_bytes, stderr_bytes = _shares(stdout.size, stderr.size, max_bytes)
    ended_by = _signal(finished)
    hop: dict[str, JsonValue] = {
        "exit_code": -1 if finished.exit_code is None or ended_by else finished.exit_code,
        "had_stderr": stderr.size > 0,
        "bytes": stdout.size + stderr.size,
    }
    if finished.confinement:
        hop["confinement"] = finished.confinement
    shown = _parts(_text(stdout, stdout_bytes), _text(stderr, stderr_bytes), ended_by)
    text = "\n".join(part.rstrip("\n") for part in shown)
    if (stdout.size, stderr.size) == (stdout_bytes, stderr_bytes):
        return Report(text, hop, None)
    hop["truncated"] = True
    if (stdout_bytes, stderr_bytes) == (len(stdout.head), len(stderr.head)):
        return Report(text, hop, None)
    whole = _parts(_text(stdout, len(stdout.head)), _text(stderr, len(stderr.head)), ended_by)
    return Report(text, hop, _as_written(whole))


def _shares(stdout: int, stderr: int, max_bytes: int) -> tuple[int, int]:
    """How many bytes of each are shown."""
    frame = _FRAME_BYTES if stderr else 0
    if stdout + stderr + frame <= max_bytes:
        return stdout, stderr
    room = max(min(max_bytes, MAX_RESULT_BYTES - _MARKS_BYTES) - frame, 0)
    of_stderr = min(stderr, max(room // _STDERR_SHARE, room - stdout))
    return min(stdout, room - of_stderr), of_stderr


def _parts(stdout: str, stderr: str, ended_by: str) -> list[str]:
    parts = [stdout]
    if stderr:
        parts += [STDERR_START, stderr, STDERR_END]
    if ended_by:
        parts.append(f"[ended by {ended_by}]")
    return [part for part in parts if part]


def _as_written(parts: Sequence[str]) -> str:
    """The parts on lines of their own, with every byte that was counted, the last line end too."""
    ended = (part if part.endswith("\n") else f"{part}\n" for part in parts[:-1])
    return "".join([*ended, *parts[-1:]])


def _text(stream: Captured, max_bytes: int) -> str:
    text = stream.head[:max_bytes].decode(errors="replace")
    if stream.size <= max_bytes:
        return text
    if stream.size == len(stream.head):
        return ends_of(stream.head, max_bytes)
    # A character that the cut went through is not one that was written.
    text = stream.head[:max_bytes].decode(errors="ignore")
    return head_of(text, max_bytes, size=stream.size)


def _signal(finished: Finished) -> str:
    if finished.exit_code is None or finished.exit_code >= 0:
        return ""
    with suppress(ValueError):
        return signal.Signals(-finished.exit_code).name
    return f"signal {-finished.exit_code}"
