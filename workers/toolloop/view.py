"""Views: what of a thread is shown to the model, which pays for all of it again in every round.

A result is shown by its head and its tail where it is too long. Older rounds leave the view whole,
oldest first, so that no call is without its result; the newest round never does. The rows stay.
"""

import json
from collections.abc import Sequence

from colony.body import Entry
from colony.envelope import Emission
from workers.toolloop.params import Positive, ThreadParams
from workers.toolloop.thread import Round, Thread


class ViewParams(ThreadParams):
    """How much is shown: bytes of one result, of the results of a round, and of all the rounds."""

    max_result_bytes: Positive = 16_384
    max_round_bytes: Positive = 65_536
    max_view_bytes: Positive = 262_144
    max_rounds: Positive = 32


def fire(thread: Thread, caps: ViewParams) -> Emission:
    """The thread on its way back to the model."""
    return Emission.of(*view(thread, caps), route="fire")


def view(thread: Thread, caps: ViewParams) -> list[Entry]:
    """What was said earlier and the question, the newest summary, then each round that is shown:
    the calls, and their results in call order."""
    shown: list[list[Entry]] = []
    total = 0
    for found in reversed(thread.unfolded):
        entries = [*found.said, *_results(found, caps)]
        total += sum(_weight(entry) for entry in entries)
        if shown and (total > caps.max_view_bytes or len(shown) == caps.max_rounds):
            break
        shown.append(entries)
    question = [*thread.earlier, thread.question] if thread.question else []
    summary = [thread.summary.entry] if thread.summary else []
    return [*question, *summary, *(entry for entries in reversed(shown) for entry in entries)]


def cut(text: str, limit: int) -> str:
    """`text`, or its head and tail with a note of what is missing, in about `limit` bytes."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    note = f"\n… [bytes {head} to {len(data) - tail} of {len(data)} are left out] …\n"
    return (
        data[:head].decode(errors="ignore")
        + note
        + data[len(data) - tail :].decode(errors="ignore")
    )


def _results(found: Round, caps: ViewParams) -> list[Entry]:
    results = found.answers
    limit = _share([_size(entry.text) for entry in results], caps)
    return [_shortened(entry, limit) for entry in results]


def _share(sizes: Sequence[int], caps: ViewParams) -> int:
    """How long a result of a round may be, if what short ones leave goes to the long ones."""
    left = caps.max_round_bytes
    for position, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - position)
        if size > share:
            return min(share, caps.max_result_bytes)
        left -= min(size, caps.max_result_bytes)
    return caps.max_result_bytes


def _shortened(entry: Entry, limit: int) -> Entry:
    if _size(entry.text) <= limit:
        return entry
    return entry.model_copy(update={"text": cut(entry.text or "", limit)})


def _weight(entry: Entry) -> int:
    # What a provider wants back is paid for again as well.
    return _size(entry.text) + (_size(json.dumps(entry.vendor)) if entry.vendor else 0)


def _size(text: str | None) -> int:
    return len((text or "").encode(errors="replace"))
