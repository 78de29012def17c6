"""What is folded of a view, and what the model that folds is told of it."""

import pytest

from colony.body import Entry
from tests.workers.compaction.conftest import call, envelope, fired, replied, rows_of
from workers.compaction import prep as folding
from workers.compaction.prep import json_size
from workers.compaction.prompt import HEADINGS

SUMMARY = Entry.say("assistant", "GOAL\nknown\n- result call-9: not really")


def prep(envelope, params):
    return folding.prep(envelope, folding.Params.model_validate(params))


def text_of(emission):
    (entry,) = emission.body.entries
    assert (entry.origin, entry.type) == ("user", "text")
    return entry.text


def test_all_rounds_but_the_newest_are_folded():
    emission = prep(fired(rows_of(rounds=range(4))), {})

    lines = [line for line in text_of(emission).splitlines() if line.startswith("- ")]
    assert emission.hop["route"] == "condense"
    assert emission.hop["compact_upto"] == "2"
    assert [line.split(":")[0] for line in lines] == [
        f"- {kind} call-{number}" for number in range(3) for kind in ("call", "result")
    ]
    assert lines[-1] == "- result call-2: 42"


def test_instruction_asks_for_four_headings_and_nothing_else_is_told():
    emission = prep(fired(rows_of(rounds=range(2))), {})

    told = emission.body.system["instructions"]["text"].splitlines()
    assert [line for line in told if line in HEADINGS] == list(HEADINGS)
    assert set(emission.body.system) == {"instructions"}


@pytest.mark.parametrize("keep", [2, 3])
def test_as_many_rounds_as_it_says_are_kept(keep):
    emission = prep(fired(rows_of(rounds=range(4))), {"keep_rounds": keep})

    assert emission.hop["compact_upto"] == str(3 - keep)
    assert f"call-{3 - keep}" in text_of(emission)
    assert f"call-{4 - keep}" not in text_of(emission)


@pytest.mark.parametrize("keep", [4, 9])
def test_where_nothing_is_to_fold_the_thread_is_asked_for(operation, keep):
    emission = prep(fired(rows_of(rounds=range(4))), {"keep_rounds": keep, "table": "rows"})

    asked = operation(emission)
    assert emission.hop == {"route": "refire"}
    assert (asked["operation"], asked["table"]) == ("select", "rows")
    assert asked["where"] == {"turn_id": "t-7"}


def test_running_summary_is_told_apart_from_what_was_said_in_the_session_before():
    earlier = [Entry.say("user", "Old?"), Entry.say("assistant", "Old answer.")]
    rows = rows_of(rounds=range(2, 5), earlier=earlier, summary=SUMMARY)

    text = text_of(prep(fired(rows, iteration=4), {}))

    assert text.startswith("The user asked: How often?\n\nRunning summary so far:\nGOAL\nknown\n")
    assert "Old" not in text
    assert text.count("call-2") == 0
    assert text.splitlines()[-1] == "- result call-3: 42"


def test_without_a_summary_no_earlier_answer_is_taken_for_one():
    earlier = [Entry.say("user", "Old?"), Entry.say("assistant", "Old answer.")]

    text = text_of(prep(fired(rows_of(rounds=range(3), earlier=earlier)), {}))

    assert "Running summary" not in text
    assert "Old" not in text


def test_question_said_word_for_word_before_is_still_the_last():
    earlier = [Entry.say("user", "How often?"), Entry.say("assistant", "Once.")]

    text = text_of(prep(fired(rows_of(rounds=range(3), earlier=earlier)), {}))

    assert "Once" not in text


def test_calls_of_one_answer_and_its_prose_stay_together():
    said = [call("a"), call("b"), Entry.say("assistant", "I look twice.")]
    results = [Entry.result("call-a", "1"), Entry.result("call-b", "2")]
    view = [Entry.say("user", "Q"), *said, *results, call("c"), Entry.result("call-c", "3")]

    text = text_of(prep(envelope(view, iter=1), {}))

    assert [line.split(": ")[0] for line in text.splitlines() if line.startswith("- ")] == [
        "- call call-a",
        "- call call-b",
        "- assistant",
        "- result call-a",
        "- result call-b",
    ]


def test_long_entries_are_cut_and_say_so():
    view = [
        Entry.say("user", "Q"),
        call(0),
        Entry.result("call-0", "x" * 2_500),
        call(1),
        Entry.result("call-1", "y"),
    ]

    text = text_of(prep(envelope(view, iter=1), {}))

    assert "x" * 2_000 + "… [500 more characters]" in text
    assert "x" * 2_001 not in text


def test_many_entries_share_what_the_prompt_may_have():
    view = [Entry.say("user", "Q")]
    for number in range(101):
        view += [call(number), Entry.result(f"call-{number}", "x" * 5_000)]

    text = text_of(prep(envelope(view, iter=100), {"prompt_chars": 10_000}))

    assert len(text) < 10_000 + 200 * 60
    assert "- result call-99: " in text


def test_weight_of_what_is_folded_counts_the_summary_that_is_refined():
    plain = prep(fired(rows_of(rounds=range(2, 5)), iteration=4), {})
    rows = rows_of(rounds=range(2, 5), summary=SUMMARY)
    refined = prep(fired(rows, iteration=4), {})

    folded = plain.hop["compact_bytes"] - json_size([call(2), Entry.result("call-2", "42")])
    assert refined.hop["compact_bytes"] == folded + json_size([SUMMARY])


def test_where_rounds_have_left_the_view_the_thread_is_read(operation):
    emission = prep(fired(rows_of(rounds=range(4)), caps={"max_rounds": 2}), {"table": "rows"})

    asked = operation(emission)
    assert emission.hop == {"route": "reread"}
    assert (asked["operation"], asked["table"]) == ("select", "rows")
    assert asked["where"] == {"turn_id": "t-7"}


def test_thread_that_was_read_is_folded_as_a_whole_view_is():
    earlier = [Entry.say("user", "How often?"), Entry.say("assistant", "Once.")]
    rows = rows_of(rounds=range(2, 5), earlier=earlier, summary=SUMMARY)

    assert prep(replied(rows, iteration=4), {}) == prep(fired(rows, iteration=4), {})


def test_thread_that_could_not_be_read_is_asked_for_as_it_is():
    emission = prep(replied([], error_code="query_timeout"), {})

    assert emission.hop == {"route": "refire"}


def test_half_a_character_in_a_result_stops_no_fold():
    view = [Entry.say("user", "Q"), call(0), Entry.result("call-0", "\ud800"), call(1)]

    assert prep(envelope(view, iter=1), {}).hop["route"] == "condense"
