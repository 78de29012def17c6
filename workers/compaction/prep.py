"""Prep: which rounds of a full window are folded, and what the model that folds them is told."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from workers.compaction.prompt import INSTRUCTION, prompt
from workers.compaction.rounds import in_rounds
from workers.toolloop import requests
from workers.toolloop.params import Positive, ThreadParams
from workers.toolloop.places import Places
from workers.toolloop.turns import iteration, question_id

REFIRE = "refire"


class Params(ThreadParams):
    """How many of the newest rounds stay as they are, and how much of the others is told: of one
    entry, and of all of them together."""

    keep_rounds: Positive = 1
    item_chars: Positive = 2_000
    prompt_chars: Positive = 200_000
    instruction: str = INSTRUCTION


def prep(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    """The rounds to fold for the model; where there are none, the thread is asked for as it is."""
    own = Params.read(params)
    entries, places = envelope.body.entries, Places.of(envelope)
    rounds = in_rounds(entries[places.rounds :])
    folded = rounds[: -own.keep_rounds]
    if not folded:
        return requests.select_thread(own.table, question_id(envelope), route=REFIRE)
    question = envelope.body.first("user") if places.question is None else entries[places.question]
    running = [] if places.summary is None else [entries[places.summary]]
    told = [entry for found in folded for entry in found]
    text = prompt(
        question.text or "" if question else "",
        folded,
        running=running[0].text or "" if running else "",
        kept=own.keep_rounds,
        limit=min(own.item_chars, own.prompt_chars // len(told) + 1),
    )
    return Emission(
        hop={
            "route": "condense",
            "compact_upto": str(iteration(envelope) - own.keep_rounds),
            "compact_bytes": size_of([*running, *told]),
        },
        body=Body(
            system={"instructions": {"text": own.instruction}},
            messages=(Entry.say("user", text),),
        ),
    )


def size_of(entries: Sequence[Entry]) -> int:
    """How many bytes entries have, with what says whose they are."""
    return sum(len(json.dumps(entry.to_json(), ensure_ascii=False).encode()) for entry in entries)
