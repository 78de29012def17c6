"""A summary is one row, and what is none leads on."""

import json

import pytest

from colony.body import Entry
from tests.workers.compaction.conftest import call, envelope
from workers.compaction.emit import emit
from workers.toolloop.params import ThreadParams

SAID = Entry.say("assistant", "GOAL\nknown")
FOLDED = {"compact_upto": "2", "compact_bytes": 1_000}


def test_summary_is_inserted_once_behind_its_boundary(operation):
    emission = emit(envelope([SAID], {"finish_reason": "stop"}, **FOLDED), ThreadParams())

    asked = operation(emission)
    row = asked["row"]
    assert emission.hop == {"route": "write"}
    assert (asked["operation"], asked["on_conflict"]) == ("insert", "ignore")
    assert (row["turn_id"], row["iter"], row["role"]) == ("t-7", 2, "summary")
    assert json.loads(row["turn"]) == SAID.to_json()
    assert emission.body.entries[0].id == "k-ins"


def test_what_a_provider_wants_back_is_not_kept(operation):
    thinking = SAID.model_copy(update={"vendor": {"openai": {"turn": {"x": 1}}}})

    emission = emit(envelope([thinking], {"finish_reason": "stop"}, **FOLDED), ThreadParams())

    assert json.loads(operation(emission)["row"]["turn"]) == SAID.to_json()


@pytest.mark.parametrize(
    ("entries", "hop", "context", "dropped"),
    [
        ([Entry.say("user", "fold")], {"finish_reason": "error"}, FOLDED, "error"),
        ([SAID], {"finish_reason": "error", "error_code": "timeout"}, FOLDED, "timeout"),
        ([SAID], {"finish_reason": "length"}, FOLDED, "length"),
        ([SAID], {"finish_reason": "content_filter"}, FOLDED, "content_filter"),
        ([call(0)], {"finish_reason": "tool_calls"}, FOLDED, "tool_calls"),
        ([call(0), SAID], {"finish_reason": "tool_calls"}, FOLDED, "tool_calls"),
        ([call(0), SAID], {"finish_reason": "stop"}, FOLDED, "tool_calls"),
        ([], {"finish_reason": "stop"}, FOLDED, "empty_answer"),
        ([Entry.say("assistant", " \n\t ")], {"finish_reason": "stop"}, FOLDED, "empty_answer"),
        ([SAID], {"finish_reason": "stop"}, {**FOLDED, "compact_bytes": 20}, "not_shorter"),
        ([SAID], {"finish_reason": "stop"}, {"compact_bytes": 1_000}, "no_boundary"),
        ([SAID], {"finish_reason": "stop"}, {**FOLDED, "compact_upto": "soon"}, "no_boundary"),
    ],
)
def test_what_is_no_summary_asks_for_the_thread(operation, entries, hop, context, dropped):
    emission = emit(envelope(entries, hop, **context), ThreadParams())

    asked = operation(emission)
    assert emission.hop == {"route": "refire", "dropped": dropped}
    assert (asked["operation"], asked["where"]) == ("select", {"turn_id": "t-7"})


def test_the_same_answer_makes_the_same_row():
    answer = envelope([SAID], {"finish_reason": "stop"}, **FOLDED)

    assert emit(answer, ThreadParams()) == emit(answer, ThreadParams())
