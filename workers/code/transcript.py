"""Transcripts: what a failed process wrote, as a text a model or a person can read."""

from workers.code.zygote import Finished

# A model reads this, and a runaway script may have written for a minute.
MAX_BYTES = 8 * 1024


def transcript(finished: Finished) -> str:
    """Stdout and stderr of a failed process between sentinels, each cut at its head."""
    parts = {"stdout": finished.stdout, "stderr": finished.stderr}
    sections = [f"--- {name} ---\n{tail(data)}" for name, data in parts.items()]
    return "\n".join([f"exit code {finished.exit_code}", *sections, "--- end ---"])


def tail(data: bytes) -> str:
    """The end of what a process wrote, where errors are."""
    text = data[-MAX_BYTES:].decode(errors="replace")
    missing = len(data) - MAX_BYTES
    return f"[{missing} bytes before this] … {text}" if missing > 0 else text
