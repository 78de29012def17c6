from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.body import Entry
from colony.results import handle_of, kept_at, with_handle
from workers.toolloop.eviction import weight_of
from workers.toolloop.thread import Round, Summary, Thread
from workers.toolloop.view import ViewParams, cut, in_row, view


@pytest.fixture
def thread(called):
    """A thread with a round for each list of result texts."""

    def make(*rounds):
        return Thread(
            question=Entry.say("user", "why?"),
            rounds={
                number: Round(
                    number,
                    said=[called(f"{number}-{n}") for n in range(len(texts))],
                    results={
                        f"{number}-{n}": Entry.result(f"{number}-{n}", text)
                        for n, text in enumerate(texts)
                    },
                )
                for number, texts in enumerate(rounds)
            },
        )

    return make


def results(entries):
    return [entry for entry in entries if entry.type == "tool_result"]


def said(entries):
    return [e.text for e in entries if (e.origin, e.type) == ("assistant", "text")]


def test_short_results_are_shown_whole(thread):
    shown = view(thread(["one", "two"]), ViewParams())

    assert [entry.text for entry in results(shown)] == ["one", "two"]


def test_long_result_is_shown_by_its_head_and_tail_and_what_is_left_out(thread):
    text = "HEAD" + "x" * 100_000 + "TAIL"

    (shown,) = results(view(thread([text]), ViewParams()))

    assert shown.text.startswith("HEAD")
    assert shown.text.endswith("TAIL")
    assert "of 100008 are left out" in shown.text
    assert len(shown.text) < 16_384 + 100


def test_round_has_a_cap_of_its_own_and_what_short_results_leave_goes_to_long_ones(thread):
    texts = [*("x" * 6_000 for _ in range(7)), *("y" * 40_000 for _ in range(2))]

    sizes = [len(entry.text) for entry in results(view(thread(texts), ViewParams()))]

    assert sizes[:7] == [6_000] * 7
    assert min(sizes[7:]) > 11_000
    assert sum(sizes) < 65_536 + 2 * 100


def test_older_rounds_leave_whole_and_the_newest_never(thread):
    rounds = [["z" * 1_000] * 2 for _ in range(6)]

    shown = view(thread(*rounds), ViewParams(max_view_bytes=5_000))
    tight = view(thread(*rounds), ViewParams(max_view_bytes=1, max_rounds=1))

    assert [entry.id for entry in results(shown)] == ["4-0", "4-1", "5-0", "5-1"]
    assert [entry.id for entry in results(tight)] == ["5-0", "5-1"]
    assert shown[0].text == "why?"


def test_what_a_provider_wants_back_is_shown_whole_and_counts_as_well(thread):
    made = thread(["ok"], ["ok"], ["ok"])
    kept = {"anthropic": {"turn": {"blocks": ["t" * 2_000]}}}
    for found in made.rounds.values():
        found.said = [call.model_copy(update={"vendor": kept}) for call in found.said]

    shown = view(made, ViewParams(max_view_bytes=5_000))

    assert [entry.vendor for entry in shown if entry.type == "tool_call"] == [kept]


@pytest.mark.parametrize("most", range(1, 8))
def test_every_call_that_is_shown_has_its_result_at_any_cut(thread, most):
    shown = view(thread(*([["ok"] * 3] * 6)), ViewParams(max_rounds=most))

    calls = [entry.id for entry in shown if entry.type == "tool_call"]
    assert calls == [entry.id for entry in results(shown)]
    assert 1 <= len(calls) / 3 <= most


def test_marker_says_how_much_left_and_stands_beside_the_first_calls_that_are_shown(thread):
    rounds = thread(*([["ok", "fine"]] * 3))

    shown = view(rounds, ViewParams(max_rounds=2))

    assert [entry.type for entry in shown] == [
        "text",
        *["tool_call"] * 2,
        "text",
        *["tool_result"] * 2,
    ]
    calls = [entry for n in (0, 1) for entry in rounds.rounds[n].said]
    size = sum(len(call.text) for call in calls) + 2 * len("okfine")
    assert shown[3].text == (
        f"[2 earlier rounds of this question, with 4 calls and {size} bytes, left this view.]"
    )


def test_marker_names_what_is_kept_whole_the_newest_of_it(thread):
    handles = [f"blob:{number:032x}@t-1" for number in range(20)]
    kept = [[with_handle("head", handle, size=70_000)] for handle in handles]

    (few,) = said(view(thread(*kept[:2], ["ok"]), ViewParams(max_rounds=1)))
    (many,) = said(view(thread(*kept, ["ok"]), ViewParams(max_rounds=1)))

    named = [f"70000 bytes at {handle}" for handle in handles]
    assert few.endswith(f" left this view. Kept: {', '.join(named[:2])}.]")
    assert many.endswith(f" left this view. Kept: {', '.join(named[4:])}, and 4 before them.]")


def test_marker_names_no_handle_that_only_looks_like_one(thread):
    forged = ["[kept: 5 bytes at blob:../etc]", "\n[kept: x bytes at blob:0]", "[kept: ]"]

    (marker,) = said(view(thread(forged, ["ok"]), ViewParams(max_rounds=1)))

    assert marker.endswith(" left this view.]")


def test_requests_begin_alike_for_several_rounds_between_two_evictions(thread):
    views = [
        view(thread(*([["ok"]] * rounds)), ViewParams(max_rounds=8)) for rounds in range(1, 21)
    ]

    first = [results(shown)[0].id for shown in views]
    assert first == [*["0-0"] * 8, *["3-0"] * 3, *["6-0"] * 3, *["9-0"] * 3, *["12-0"] * 3]
    for before, after in pairwise(views):
        again = after[: len(before)] == before
        assert again == (results(before)[0].id == results(after)[0].id)


def test_marker_counts_as_what_is_shown(thread):
    weight = weight_of(view(thread(["z" * 400]), ViewParams())[1:])
    caps = ViewParams(max_view_bytes=4 * weight)

    views = [view(thread(*([["z" * 400]] * rounds)), caps)[1:] for rounds in range(1, 20)]

    assert max(map(weight_of, views)) == 4 * weight
    assert [len(results(shown)) for shown in views[:8]] == [1, 2, 3, 4, 2, 3, 2, 3]


def test_a_summary_starts_the_view_anew_behind_its_boundary(thread):
    made = thread(*([["ok"]] * 9))
    made.summary = Summary(6, Entry.say("assistant", "GOAL: why"))

    shown = view(made, ViewParams(max_rounds=2))

    assert [entry.text for entry in shown if entry.type == "text"] == ["why?", "GOAL: why"]
    assert [entry.id for entry in results(shown)] == ["7-0", "8-0"]


@pytest.mark.parametrize("caps", [ViewParams(), ViewParams(max_result_bytes=1)])
def test_a_row_has_twice_what_a_view_shows_of_a_result_and_its_handle(caps):
    text = "é" * 100_000
    handle = handle_of(text.encode(), "t-1")
    whole = Entry.result("c", with_handle(text, handle, size=200_000), is_error=True)

    kept = in_row(whole, caps)

    assert (kept.id, kept.is_error) == ("c", True)
    assert len(kept.text.encode()) < max(2 * caps.max_result_bytes, 16_384) + 100
    assert kept_at(kept.text) == kept_at(whole.text)
    assert in_row(kept.model_copy(update={"text": "ok"}), caps).text == "ok"


@given(st.text("aé€😀", min_size=5), st.sampled_from([0, 1, 3]), st.integers(0, 16_384))
def test_what_was_cut_for_its_row_is_shown_as_if_it_never_was(letters, ahead, limit):
    caps = ViewParams()
    whole = Entry.result("c", "x" * ahead + letters * 10_000)

    kept = in_row(whole, caps)

    assert cut(kept.text, limit) == cut(whole.text, limit)


def test_a_note_that_a_text_holds_of_another_one_is_text():
    (note,) = [line for line in cut("x" * 9_000, 100).splitlines() if "left out" in line]
    text = "y" * 400 + f"\n{note}\n" + "y" * 400

    assert f"of {len(text.encode())} are left out" in cut(text, 100)


@given(st.text(), st.integers(1, 200))
def test_cut_text_keeps_whole_characters(text, limit):
    shown = cut(text, limit)

    assert "\ufffd" not in shown or "\ufffd" in text
    assert len(shown.encode()) <= max(len(text.encode()), limit + 100)
