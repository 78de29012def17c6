"""Prep: which rounds of a full window are folded, and what the model that folds them is told.

The view has them, and nothing is asked for. Where rounds have left it, the thread is read: they are
folded as well.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.results import kept_at
from workers.compaction.prompt import INSTRUCTION, prompt
from workers.compaction.rounds import Entries, in_rounds
from workers.compaction.summary import parted
from workers.toolloop import requests
from workers.toolloop.kept import Named
from workers.toolloop.params import Positive, ThreadParams
from workers.toolloop.places import Places
from workers.toolloop.rows import rows_of
from workers.toolloop.thread import Thread
from workers.toolloop.turns import iteration, question_id

REFIRE, REREAD = "refire", "reread"


class Params(ThreadParams):
    """How many of the newest rounds stay as they are, and how much of the others is told: of one
    entry, and of all of them together. `measure` is for the edges, which cannot refuse another."""

    measure: Literal["sum", "last"] = "sum"
    keep_rounds: Positive = 1
    item_chars: Positive = 2_000
    prompt_chars: Positive = 200_000
    instruction: str = INSTRUCTION


def prep(envelope: Envelope, own: Params) -> Emission:
    """The rounds to fold for the model; where there are none, the thread is asked for as it is."""
    turn_id, read = question_id(envelope), "operation" in envelope.hop
    if not read and Places.of(envelope).left_out:
        return requests.select_thread(own.table, turn_id, route=REREAD)
    window = _Window.of_rows(envelope) if read else _Window.of_view(envelope)
    folded = window.rounds[: -own.keep_rounds]
    if not folded:
        return requests.select_thread(own.table, turn_id, route=REFIRE)
    told = [entry for found in folded for entry in found]
    summary, before = parted(_text(window.running))
    kept = before.and_then(_kept(told)).text
    text = prompt(
        _text(window.question),
        folded,
        running=summary,
        kept=own.keep_rounds,
        limit=min(own.item_chars, own.prompt_chars // len(told) + 1),
    )
    running = [window.running] if window.running else []
    return Emission(
        hop={
            "route": "condense",
            "compact_upto": str(iteration(envelope) - own.keep_rounds),
            "compact_bytes": json_size([*running, *told]),
            **({"compact_kept": kept} if kept else {}),
        },
        body=Body(
            system={"instructions": {"text": own.instruction}},
            messages=(Entry.say("user", text),),
        ),
    )


def _kept(told: Sequence[Entry]) -> Named:
    """Where of the results that are folded the long ones are kept whole."""
    found = (kept_at(entry.text or "") for entry in told if entry.type == "tool_result")
    return Named.of(one for one in found if one is not None)


def json_size(entries: Sequence[Entry]) -> int:
    """How many bytes entries have, with what says whose they are."""
    texts = (json.dumps(entry.to_json(), ensure_ascii=False) for entry in entries)
    return sum(len(text.encode(errors="replace")) for text in texts)


@dataclass(frozen=True, slots=True)
class _Window:
    """A question, its running summary, and the rounds that no summary stands for."""

    question: Entry | None
    running: Entry | None
    rounds: Sequence[Entries]

    @classmethod
    def of_view(cls, envelope: Envelope) -> Self:
        entries, places = envelope.body.entries, Places.of(envelope)
        asked = envelope.body.first("user") if places.question is None else entries[places.question]
        running = None if places.summary is None else entries[places.summary]
        return cls(asked, running, in_rounds(entries[places.rounds :]))

    @classmethod
    def of_rows(cls, reply: Envelope) -> Self:
        thread = Thread.of(rows_of(reply.body), question_id(reply))
        running = thread.summary.entry if thread.summary else None
        rounds = [[*found.said, *found.answers] for found in thread.unfolded]
        return cls(thread.question, running, rounds)


def _text(entry: Entry | None) -> str:
    return (entry.text or "") if entry else ""
