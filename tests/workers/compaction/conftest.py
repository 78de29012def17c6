import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.schema import Row
from workers.toolloop.collect import Params, collect
from workers.toolloop.rows import assistant_row, summary_row, tool_row, user_row

QUESTION = Entry.say("user", "How often?")


def call(number: int | str) -> Entry:
    text = json.dumps({"name": "calc", "arguments": "{}"})
    return Entry(origin="assistant", type="tool_call", id=f"call-{number}", text=text)


def envelope(
    entries: Sequence[Entry], hop: Mapping[str, Any] | None = None, **context: Any
) -> Envelope:
    return Envelope(
        id="m-1",
        trace_id="trace-1",
        target="/cell",
        ttl=64,
        context={"turn_id": "t-7", "iter": 3, **context},
        hop=dict(hop or {}),
        body=Body.of(*entries),
    )


def rows_of(
    *, rounds: range, earlier: Sequence[Entry] = (), summary: Entry | None = None
) -> list[Row]:
    """The rows of a question with a call in each round."""
    rows = [user_row("t-7", QUESTION, earlier=earlier)]
    for number in rounds:
        rows.append(assistant_row("t-7", number, [call(number)]))
        rows.append(tool_row("t-7", number, Entry.result(f"call-{number}", "42")))
    return rows if summary is None else [*rows, summary_row("t-7", rounds.start, summary)]


def replied(rows: Sequence[Row], *, iteration: int = 3, **hop: Any) -> Envelope:
    """The store's reply with these rows."""
    entries = [Entry.result("c-op", json.dumps(rows))]
    return envelope(entries, {"operation": "select", **hop}, firing="1", iter=iteration)


def fired(
    rows: Sequence[Row], *, iteration: int = 3, caps: Mapping[str, Any] | None = None
) -> Envelope:
    """What reaches prep where the collector fires these rows."""
    (emission,) = collect(replied(rows, iteration=iteration), Params.model_validate(caps or {}))
    assert emission.hop["route"] == "fire"
    return envelope(emission.body.entries, emission.hop, iter=iteration)


@pytest.fixture
def operation() -> Callable[[Emission], dict[str, Any]]:
    """Reads what an emission asks of the store."""

    def read(emission: Emission) -> dict[str, Any]:
        (entry,) = emission.body.entries
        found: dict[str, Any] = json.loads(entry.text or "")
        return found

    return read
