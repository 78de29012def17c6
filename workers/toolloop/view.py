"""Views: what of a thread is shown to the model, which pays for all of it again in every round.

A result is shown by its head and its tail where it is too long. Older rounds leave the view whole,
so that no call is without its result, and a marker says what left; the newest round never does. The
rows stay, and the same rows make the same view.
"""

import re
from collections.abc import Sequence

from colony.body import Entry
from colony.envelope import Emission
from colony.results import SHELVED_BYTES
from workers.toolloop.eviction import first_shown, size_of, weight_of
from workers.toolloop.marker import Holding, marker
from workers.toolloop.params import Positive, ThreadParams
from workers.toolloop.places import with_places
from workers.toolloop.thread import Round, Thread

# What `cut` writes; and how many bytes of a character that it parts are not there.
_NOTE = re.compile(
    "\n… \\[bytes (\\d{1,9}) to (\\d{1,9}) of (\\d{1,9}) are left out\\] …\n".encode()
)
_PARTED = range(4)


class ViewParams(ThreadParams):
    """How much is shown: bytes of one result, of the results of a round, and of all the rounds with
    the marker of those that have left; and how many rounds."""

    max_result_bytes: Positive = 16_384
    max_round_bytes: Positive = 65_536
    max_view_bytes: Positive = 262_144
    max_rounds: Positive = 32


def fire(thread: Thread, caps: ViewParams) -> Emission:
    """The thread on its way back to the model, with its places told."""
    return with_places(Emission.of(*view(thread, caps), route="fire"), thread)


def view(thread: Thread, caps: ViewParams) -> list[Entry]:
    """What was said earlier and the question, the newest summary, then each round that is shown:
    the calls, and their results in call order.

    The marker is the prose of the oldest round that is shown. A message of its own there would be
    one that not every provider takes: a second one of the user, or of the model, in a row.
    """
    question = [*thread.earlier, thread.question] if thread.question else []
    summary = [thread.summary.entry] if thread.summary else []
    return [*question, *summary, *_shown(thread.unfolded, caps)]


def in_row(result: Entry, caps: ViewParams) -> Entry:
    """A result as its row has it: twice what a view shows of it, and its handle in any case.

    All rows of a question are read at once, and one reply of the store has to hold them.
    """
    return _shortened(result, max(2 * caps.max_result_bytes, SHELVED_BYTES))


def shown_results(results: Sequence[Entry], caps: ViewParams) -> list[Entry]:
    """The results of one round as a view shows them."""
    limit = _share([size_of(entry.text) for entry in results], caps)
    return [_shortened(entry, limit) for entry in results]


def cut(text: str, limit: int) -> str:
    """`text`, or its head and tail with a note of what is missing, in about `limit` bytes.

    Of a text that was cut before, the note is of the whole: where it stood, more is left out now.
    """
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    size = _whole(data, head, tail)
    note = f"\n… [bytes {head} to {size - tail} of {size} are left out] …\n"
    return (
        data[:head].decode(errors="ignore")
        + note
        + data[len(data) - tail :].decode(errors="ignore")
    )


def _whole(data: bytes, head: int, tail: int) -> int:
    """How long a text was before it was cut, if it was between this `head` and `tail`."""
    for note in _NOTE.finditer(data, head, len(data) - tail):
        begin, end, size = map(int, note.groups())
        # A text may hold such a note about another one.
        if begin - note.start() in _PARTED and size - end - (len(data) - note.end()) in _PARTED:
            return size
    return len(data)


def _shown(rounds: Sequence[Round], caps: ViewParams) -> list[Entry]:
    results = [shown_results(found.answers, caps) for found in rounds]
    held = [Holding.of(found) for found in rounds]
    first = first_shown(
        [weight_of([*f.said, *r]) for f, r in zip(rounds, results, strict=True)],
        most=caps.max_rounds,
        most_bytes=caps.max_view_bytes,
        note=lambda left: weight_of(_marked(held[:left])),
    )
    shown: list[Entry] = []
    for number in range(first, len(rounds)):
        prose = _marked(held[:first]) if number == first else []
        shown += [*_beside(rounds[number].said, prose), *results[number]]
    return shown


def _marked(left: Sequence[Holding]) -> list[Entry]:
    return [marker(left)] if left else []


def _beside(said: Sequence[Entry], prose: Sequence[Entry]) -> list[Entry]:
    """What the model said, with `prose` where its own begins: behind its calls."""
    calls = [number for number, entry in enumerate(said, start=1) if entry.type == "tool_call"]
    behind = calls[-1] if calls else 0
    return [*said[:behind], *prose, *said[behind:]]


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
    if size_of(entry.text) <= limit:
        return entry
    return entry.model_copy(update={"text": cut(entry.text or "", limit)})
