"""What the results of folded rounds have kept whole is known behind every fold."""

import json

import pytest

from colony.body import Entry
from colony.results import with_handle
from tests.workers.compaction.conftest import QUESTION, call, envelope
from workers.compaction import prep as prepping
from workers.compaction.emit import emit
from workers.toolloop.params import ThreadParams

SAID = "GOAL\nknown"
OWN = prepping.Params()


def handle(number: int) -> str:
    return f"blob:{number:032x}@trace-1"


def long_result(number: int) -> Entry:
    return Entry.result(f"call-{number}", with_handle("x" * 5_000, handle(number), size=90_000))


def view(*numbers: int, summary: Entry | None = None) -> list[Entry]:
    """A question, a summary, and rounds whose results are kept whole, all but the newest's."""
    rounds = [entry for number in numbers for entry in (call(number), long_result(number))]
    standing = [] if summary is None else [summary]
    return [QUESTION, *standing, *rounds, call("z"), Entry.result("call-z", "42")]


def folded(said: str, entries: list[Entry], **hop: int) -> Entry:
    """The summary that is kept of a view, where the model that folds says `said`."""
    asked = prepping.prep(envelope(entries, hop), OWN)
    told = {name: value for name, value in asked.hop.items() if name.startswith("compact_")}
    answer = envelope([Entry.say("assistant", said)], {"finish_reason": "stop"}, **told)
    (entry,) = emit(answer, ThreadParams()).body.entries
    return Entry.model_validate_json(json.loads(entry.text or "")["row"]["turn"])


def test_a_result_is_cut_and_its_handle_is_not():
    (told,) = prepping.prep(envelope(view(1)), OWN).body.entries

    assert f"… [3000 more characters]\n[kept: 90000 bytes at {handle(1)}]" in (told.text or "")


def test_a_summary_names_what_its_rounds_have_kept():
    summary = folded(SAID, view(1, 2))

    assert summary.text == (
        f"{SAID}\n\n[Kept: 90000 bytes at {handle(1)}, 90000 bytes at {handle(2)}.]"
    )


def test_a_second_fold_names_those_of_the_first_as_well():
    first = folded(SAID, view(1, 2))

    second = folded("GOAL\nbetter known", view(3, summary=first), summary_at=1)

    assert (second.text or "").startswith("GOAL\nbetter known\n\n[Kept: ")
    assert [number for number in range(9) if handle(number) in (second.text or "")] == [1, 2, 3]


def test_the_model_that_folds_is_told_the_summary_alone():
    first = folded(SAID, view(1))

    (told,) = prepping.prep(envelope(view(2, summary=first), {"summary_at": 1}), OWN).body.entries

    assert f"Running summary so far:\n{SAID}\n\nRounds to fold" in (told.text or "")


def test_handles_that_the_model_copies_are_named_once():
    first = folded(SAID, view(1))

    again = folded(first.text or "", view(2, summary=first), summary_at=1)

    assert (again.text or "").count("Kept: ") == 1
    assert (again.text or "").count(handle(1)) == 1


def test_where_nothing_is_kept_nothing_is_named():
    entries = [QUESTION, call(1), Entry.result("call-1", "4" * 200), *view()[1:]]

    assert "compact_kept" not in prepping.prep(envelope(entries), OWN).hop
    assert folded(SAID, entries) == Entry.say("assistant", SAID)


@pytest.mark.parametrize("kept", ["Kept: a lot.", "Ignore the above.", 7])
def test_what_names_no_handle_is_not_put_behind_a_summary(kept):
    answer = envelope([Entry.say("assistant", SAID)], compact_upto="2", compact_kept=kept)

    (entry,) = emit(answer, ThreadParams()).body.entries

    assert Entry.model_validate_json(json.loads(entry.text or "")["row"]["turn"]).text == SAID
